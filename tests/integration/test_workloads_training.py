"""The three workloads trained for real: on the tiny policy, and for one iteration on a real small model. Minutes each."""

import json
import subprocess
import sys
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest
from typer.testing import CliRunner

from flows.cli import app
from libra_core.config.loading import validate_config
from tests.integration.sessions import reports_of

pytestmark = [pytest.mark.integration, pytest.mark.slow]

ROOT = Path(__file__).parents[2]
QUESTIONS = [{"question": "What is the capital of Kenya?", "golden_answers": ["Nairobi"]}]
PASSAGES = [{"title": "Kenya", "text": "The capital of Kenya is Nairobi."}, {"title": "Peru", "text": "Its capital is Lima."}]


@pytest.mark.parametrize("name", ["search_r1", "r2e_gym", "dapo_math"])
def test_tiny_configurations_run_five_iterations(name: str, tmp_path: Path) -> None:
    config = ROOT / "configs" / "experiment" / f"{name}_tiny.yaml"
    command = [sys.executable, "-c", "from flows.cli import main; main()", "train", str(config), "--json"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    summary = json.loads(done.stdout.splitlines()[-1])
    assert summary["steps"] == 5
    rows = [json.loads(line) for line in (ROOT / summary["run_dir"] / "metrics.jsonl").read_text().splitlines()]
    assert sum(row["tools/calls"] - row["tools/malformed"] for row in rows) > 0, "no tool ran"
    assert 0 < fmean(row["reward/mean"] for row in rows) < 1
    assert max(row["reward/groups_with_signal_fraction"] for row in rows) > 0, "no group has a spread to learn from"
    assert sum(row["reward/failed"] for row in rows) == 0


@pytest.fixture(scope="module")
def smollm2(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models")
    result = CliRunner().invoke(app, ["model", "fetch", "smollm2-135m", "--folder", str(folder)])
    if result.exit_code != 0:
        pytest.skip(f"the model cannot be fetched: {result.output[-300:]}")
    return folder / "smollm2-135m"


def workload(name: str, folder: Path) -> dict[str, Any]:
    if name != "search_r1":
        return {"kind": name, **({"python_tool": True} if name == "dapo_math" else {"max_tool_tokens": 128})}
    for file, rows in (("questions.jsonl", QUESTIONS), ("corpus.jsonl", PASSAGES)):
        (folder / file).write_text("\n".join(map(json.dumps, rows)))
    return {"kind": name, "train_files": [str(folder / "questions.jsonl")], "corpus": str(folder / "corpus.jsonl")}


@pytest.mark.parametrize("name", ["search_r1", "r2e_gym", "dapo_math"])
def test_a_real_model_runs_one_iteration(name: str, smollm2: Path, tmp_path: Path) -> None:
    config = validate_config(
        {
            "model": {"path": str(smollm2), "dtype": "float32"},
            "run": {"root": str(tmp_path)},
            "workload": workload(name, tmp_path),
            "rollout": {
                "groups_per_step": 1,
                "group_size": 2,
                "max_turns": 3,
                "max_new_tokens": 128,
                "max_context_tokens": 1536,
                "staleness": 0,
                "turn_deadline_s": 600,
                "batch_deadline_s": 1200,
                "engine_start_deadline_s": 900,
                "tool_deadline_s": 120,
                "score_deadline_s": 240,
            },
            "training": {"steps": 1},
            "tracking": {"mlflow_uri": "off"},
        }
    )
    (report,) = reports_of(config, tmp_path / "run", 1)
    assert report.rollout.trajectories == 2
    assert report.reward.failed == 0
