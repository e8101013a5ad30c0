import json
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from flows.cli import app

ROOT = Path(__file__).parents[3]
CONFIG = str(ROOT / "configs" / "experiment" / "r2e_gym_48gpu.yaml")


@pytest.fixture(autouse=True)
def at_root(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)


def run_json(*arguments: str) -> dict[str, object]:
    done = subprocess.run(
        [sys.executable, "-m", "flows.cli", "plan", CONFIG, "--json", *arguments], capture_output=True, text=True, check=True
    )
    return json.loads(done.stdout)


def test_json_holds_plan_forecast_and_reasons() -> None:
    found = run_json("--set", "rollout.staleness=2")
    best = found["best"]
    assert best["num_gpus"] <= 48
    assert {"t_train_s", "t_rollout_s", "t_iter_s", "tokens_per_s", "train_bytes_per_gpu"} <= set(best["forecast"])
    assert len(found["runner_ups"]) == 5
    assert found["binding"] in "ABCD"
    assert found["grounding"] == "derived", "A800 is derived from A100"
    assert sum(len(group["gpus"]) for group in found["placement"]) >= best["num_gpus"] // 2


def test_table_shows_plan_nodes_and_binding_term() -> None:
    result = CliRunner().invoke(app, ["plan", CONFIG, "--explain"], env={"COLUMNS": "160"})
    assert result.exit_code == 0, result.output
    for text in ("T_iter", "Runner-ups", "Nodes", "binding", "grounding", "solved in", "cut branches"):
        assert text in result.stdout


def test_history_of_short_trajectories_is_faster(tmp_path: Path) -> None:
    path = tmp_path / "history.jsonl"
    line = json.dumps({"prompt_tokens": 200, "generated_tokens": [100, 50], "tool_tokens": [20], "tool_s": [0.1]})
    path.write_text(f"{line}\n" * 20)
    short = run_json("--history", str(path))
    assert short["best"]["forecast"]["t_iter_s"] < 60, "minutes with the example lengths"
    assert short["lengths"] == str(path)


@pytest.mark.parametrize(
    ("setting", "sentence"),
    [
        ("planner.device=none_such", "none_such"),
        ("planner.model=none_such", "none_such"),
        ("planner.num_gpus=3", "planner.num_gpus (3)"),
        ("planner.router_accuracy=0.5", "set both or neither"),
        ("planner.nodes=0", "planner.nodes"),
    ],
)
def test_mistakes_are_one_sentence(setting: str, sentence: str) -> None:
    result = CliRunner().invoke(app, ["plan", CONFIG, "--set", setting])
    assert result.exit_code == 2
    assert sentence in result.stderr
    assert result.stderr.count("\n") == 1


def test_too_small_a_cluster_is_one_sentence() -> None:
    result = CliRunner().invoke(app, ["plan", CONFIG, "--set", "planner.nodes=1", "--set", "planner.gpus_per_node=2"])
    assert result.exit_code == 2
    assert result.stderr.startswith("libra: no plan for 2 GPUs: no training layout fits")


def test_planning_loads_neither_ray_nor_torch() -> None:
    code = (
        "import sys; from typer.testing import CliRunner; from flows.cli import app\n"
        f"result = CliRunner().invoke(app, ['plan', {CONFIG!r}])\n"
        "assert result.exit_code == 0, result.output\n"
        "heavy = {'torch', 'ray', 'vllm', 'prefect', 'mlflow', 'pandas', 'transformers'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT)
