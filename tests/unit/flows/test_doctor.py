import json
import logging
from pathlib import Path

import pytest
from typer.testing import CliRunner

from flows.cli import app
from libra_core.preflight import preflight


def _doctor(*arguments: str) -> tuple[int, str]:
    result = CliRunner().invoke(app, ["doctor", *arguments])
    return result.exit_code, result.output


@pytest.fixture
def simulated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The lightest run there is."""
    monkeypatch.delenv("PREFECT_API_URL", raising=False)
    path = tmp_path / "a.yaml"
    path.write_text(f"run: {{root: {tmp_path}/runs}}\nbackend: {{kind: simulated}}\n")
    return str(path)


def test_a_host_that_is_ready_gives_a_line_per_check_and_exit_0(simulated: str) -> None:
    code, output = _doctor(simulated)
    assert code == 0
    lines = output.splitlines()
    assert [line.split()[0] for line in lines] == ["ok"] * len(lines)
    assert [line.split()[1] for line in lines[:2]] == ["config", "run"]


def test_a_defect_gives_its_line_with_a_remedy_and_exit_2(simulated: str) -> None:
    code, output = _doctor(simulated, "--set", "simulation.truth=none.yaml")
    assert code == 2
    (line,) = [line for line in output.splitlines() if line.startswith("FAIL")]
    assert "simulation" in line
    assert "; examples lie in configs/study/" in line


def test_a_key_that_does_not_exist_is_a_finding_too(simulated: str) -> None:
    code, output = _doctor(simulated, "--set", "training.stps=3")
    assert code == 2
    assert output.startswith("FAIL  config  unknown key training.stps; did you mean training.steps?")


@pytest.mark.parametrize(("change", "code"), [("seed=1", 0), ("simulation.truth=none.yaml", 2)])
def test_json_is_one_object_on_the_last_line(simulated: str, capfd: pytest.CaptureFixture[str], change: str, code: int) -> None:
    from flows.command_line.doctor import run_doctor

    assert run_doctor(Path(simulated), [change], as_json=True) == code
    (line,) = capfd.readouterr().out.splitlines()
    said = json.loads(line)
    assert said["ready"] is (code == 0)
    assert {"name", "ok", "sentence", "remedy"} == set(said["findings"][0])


def test_train_is_refused_before_any_library_is_loaded(simulated: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from flows.command_line import commands

    monkeypatch.setattr(commands, "process_environment", lambda *_, **__: pytest.fail("went on"))
    result = CliRunner().invoke(app, ["train", simulated, "--set", "simulation.truth=none.yaml"])
    assert result.exit_code == 2
    assert f"cannot read the truth table {Path.cwd() / 'none.yaml'}" in result.stderr
    assert "Traceback" not in result.stderr


def test_the_flow_of_a_served_run_looks_before_it_makes_a_folder(
    simulated: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from flows import start_report
    from flows.lifecycle import training_run
    from libra_core.config import load_config
    from libra_core.errors import PreflightError

    config = load_config(simulated, ["simulation.truth=none.yaml"])
    monkeypatch.setattr(start_report, "get_run_logger", lambda: logging.getLogger("test"))
    with pytest.raises(PreflightError, match="truth table"), training_run(config):
        pass
    assert not list((tmp_path / "runs").glob("*/journal.json"))
    assert config not in preflight._passed
