"""`libra env check` and `libra data prepare` as people call them."""

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from flows.cli import app

BOUNDS = {"scripted": (0.95, 1.0), "random": (0.0, 0.1), "garbage": (0.0, 0.0)}


def checked(capfd: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    result = CliRunner().invoke(app, ["env", "check", *arguments, "--json"])
    assert result.exit_code == 0, result.output
    facts: dict[str, Any] = json.loads(capfd.readouterr().out.splitlines()[-1])
    return facts


@pytest.mark.parametrize("agent", BOUNDS)
@pytest.mark.parametrize("workload", ["search_r1", "dapo_math"])
def test_embedded_workloads_reward_what_they_should(workload: str, agent: str, capfd: pytest.CaptureFixture[str]) -> None:
    facts = checked(capfd, workload, "--agent", agent)
    low, high = BOUNDS[agent]
    assert low <= facts["success"] <= high
    assert (facts["episodes"], facts["lost"]) == (200, 0)


@pytest.mark.slow
@pytest.mark.parametrize("agent", BOUNDS)
def test_repairs_reward_what_they_should_with_64_sandboxes(agent: str, capfd: pytest.CaptureFixture[str]) -> None:
    facts = checked(capfd, "r2e_gym", "--agent", agent)
    low, high = BOUNDS[agent]
    assert low <= facts["success"] <= high
    assert (facts["episodes"], facts["lost"]) == (200, 0)
    assert facts["most_at_once"] == 64 or agent != "scripted"


def test_python_is_run_for_mathematics(capfd: pytest.CaptureFixture[str]) -> None:
    facts = checked(capfd, "dapo_math", "--set", "workload.python_tool=true", "--episodes", "8")
    assert facts["tool_calls"] == {"ok": 8}
    assert facts["success"] == 1.0


def test_files_are_kept_with_their_checksums(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    questions, corpus = tmp_path / "nq.jsonl", tmp_path / "wiki.jsonl"
    questions.write_text('{"question": "q?", "golden_answers": ["x"]}\n')
    corpus.write_text('{"title": "t", "text": "x"}\n')
    arguments = ["search_r1", "--source", str(questions), "--corpus", str(corpus), "--folder", str(tmp_path / "data"), "--json"]
    result = CliRunner().invoke(app, ["data", "prepare", *arguments])
    assert result.exit_code == 0, result.output
    files = json.loads(capfd.readouterr().out.splitlines()[-1])["files"]
    assert files["nq.jsonl"]["rows"] == 1
    assert len(files["nq.jsonl"]["sha256"]) == 64
    manifest = json.loads((tmp_path / "data" / "search_r1" / "manifest.json").read_text())
    assert manifest["files"] == files
    assert (tmp_path / "data" / "search_r1" / "wiki.jsonl").read_text() == corpus.read_text()


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["data", "prepare", "dapo_math", "--source", "{nq}"], "row 1 is of no known schema: it has golden_answers, question"),
        (["data", "prepare", "dapo_math", "--source", "{absent}"], "no data file at"),
        (["data", "prepare", "chess"], "no workload 'chess'"),
        (["data", "prepare", "dapo_math", "--corpus", "{nq}"], "--corpus belongs to search_r1"),
        (["env", "check", "chess"], "no workload 'chess'"),
        (["env", "check", "search_r1", "--agent", "clever"], "--agent 'clever'"),
        (["env", "check", "synthetic", "--agent", "scripted"], "no scripted agent"),
        (["env", "check", "r2e_gym", "--set", "rollout.score_deadline_s=5"], "must exceed workload.test_wall_s"),
        (["env", "check", "r2e_gym", "--set", "workload.sandbox.wall_s=50"], "least workload.sandbox.wall_s + 20 = 70"),
        (["env", "check", "dapo_math", "--set", "workload.generated_tasks=[nothing]"], "workload.generated_tasks"),
        (["env", "check", "dapo_math", "--set", "workload.generated_tasks=[]"], "workload.generated_tasks"),
    ],
)
def test_mistakes_are_one_sentence(arguments: list[str], says: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "nq.jsonl").write_text('{"question": "q?", "golden_answers": ["x"]}\n')
    names = {"nq": str(tmp_path / "nq.jsonl"), "absent": str(tmp_path / "absent.jsonl")}
    result = CliRunner().invoke(app, [word.format(**names) if word.startswith("{") else word for word in arguments])
    assert result.exit_code == 2
    assert says in result.output + capfd.readouterr().err
    assert "Traceback" not in result.output
