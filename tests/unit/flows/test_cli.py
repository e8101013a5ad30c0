import subprocess
import sys
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from flows.cli import INTERRUPTED, app, in_sentences
from libra_core.errors import DeadlineError, NumericsError, ResourceError

ROOT = Path(__file__).parents[3]


def _run(*arguments: str) -> tuple[int, str, str]:
    result = CliRunner().invoke(app, list(arguments))
    return result.exit_code, result.stdout, result.stderr


def test_missing_config_is_one_sentence_and_exit_code_2(tmp_path: Path) -> None:
    code, out, err = _run("train", str(tmp_path / "none.yaml"))
    assert code == 2
    assert out == ""
    assert err.startswith("libra: no config file at ")
    assert err.count("\n") == 1


def test_unknown_key_names_the_nearest(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text("sed: 1\n")
    code, _, err = _run("train", str(tmp_path / "a.yaml"))
    assert code == 2
    assert "did you mean seed?" in err


def test_bad_override_is_refused_before_anything_starts(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text(f"run: {{root: {tmp_path}/runs}}\n")
    code, _, err = _run("train", str(tmp_path / "a.yaml"), "--set", "training.steps=none")
    assert code == 2
    assert "training.steps" in err
    assert not (tmp_path / "runs").exists()


def test_resume_of_nothing_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text("seed: [1\n")
    code, _, err = _run("train", str(tmp_path / "a.yaml"), "--resume", str(tmp_path))
    assert code == 2
    assert "not valid YAML" in err


def test_a_run_goes_on_with_its_own_configuration_where_none_is_named(tmp_path: Path) -> None:
    code, _, err = _run("train", "--resume", str(tmp_path))
    assert code == 2
    assert f"{tmp_path} is no run folder: no config.yaml lies in {tmp_path}" in err
    (tmp_path / "config.yaml").write_text("sed: 1\n")
    for named in (tmp_path, tmp_path / "checkpoints" / "step-000002"):
        code, _, err = _run("train", "--resume", str(named))
        assert code == 2
        assert "did you mean seed?" in err, "the run's own file was read"


def test_config_show_fills_in_defaults(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text("seed: 5\n")
    code, out, _ = _run("config", "show", str(tmp_path / "a.yaml"), "--set", "training.steps=3")
    assert code == 0
    assert "seed: 5" in out
    assert "steps: 3" in out
    assert "staleness:" in out


@pytest.mark.parametrize("goal", ["--target-hours", "--target-tokens-per-s"])
def test_a_goal_of_whatif_that_is_not_above_zero_has_no_traceback(goal: str) -> None:
    code, _, err = _run("whatif", "configs/study/48gpu.yaml", goal, "-1")
    assert code == 2
    assert "-1 is not a finite number above 0" in err
    code, _, err = _run("whatif", "configs/study/48gpu.yaml", goal, "nan")
    assert code == 2
    assert "nan is not a finite number" in err


def test_wrong_usage_has_no_traceback() -> None:
    code, _, err = _run("train")
    assert code == 2
    assert "Traceback" not in err


@pytest.mark.parametrize(
    ("error", "code"),
    [(ResourceError("x"), 2), (DeadlineError("x"), 3), (NumericsError("x"), 4), (KeyboardInterrupt(), INTERRUPTED)],
)
def test_each_error_has_its_exit_code(error: BaseException, code: int) -> None:
    @in_sentences
    def command() -> None:
        raise error

    with pytest.raises(typer.Exit) as raised:
        command()
    assert raised.value.exit_code == code


def test_help_is_light() -> None:
    code = (
        "import time; start = time.process_time(); import sys; sys.argv = ['libra', '--help']\n"
        "from flows.cli import main\n"
        "try:\n    main()\nexcept SystemExit:\n    pass\n"
        "heavy = {'torch', 'ray', 'vllm', 'prefect', 'mlflow', 'megatron', 'pandas'} & set(sys.modules)\n"
        "print(time.process_time() - start, *sorted(heavy))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    seconds, *heavy = done.stdout.splitlines()[-1].split()
    assert heavy == []
    assert float(seconds) < 1.0


@pytest.mark.parametrize("command", [("env", "check"), ("data", "prepare")])
def test_a_data_file_in_place_of_a_workload_is_told_where_it_belongs(command: tuple[str, ...]) -> None:
    code, _, err = _run(*command, "rows.jsonl")
    assert code == 2
    assert "it is one of search_r1, r2e_gym, dapo_math, synthetic" in err
    assert "a data file comes beside the name of its workload: libra " in err
