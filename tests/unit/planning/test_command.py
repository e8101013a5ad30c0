import json
import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from flows.cli import app
from libra_core.config import load_config
from libra_core.costs.measured import PROFILE_VERSION, EngineLawFit, MeasuredProfile, write_measured
from libra_core.types.laws import EngineLaw
from support.laws import trainer_law

ROOT = Path(__file__).parents[3]
QUICKSTART = str(ROOT / "configs" / "experiment" / "quickstart.yaml")
HF_CONFIG = """{"model_type": "qwen3", "num_attention_heads": 4, "num_key_value_heads": 2, "hidden_size": 128, "head_dim": 32,
"num_hidden_layers": 4, "intermediate_size": 384, "vocab_size": 1024, "tie_word_embeddings": true,
"max_position_embeddings": 512}"""
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


def host_profile(folder: Path, hidden: int = 128) -> list[str]:
    """Settings that plan the quickstart's policy by a calibration of this host."""
    (folder / "config.json").write_text(HF_CONFIG)
    law = EngineLaw(
        a_s=8e-3,
        b_s=1e-4,
        c_s=1e-8,
        prefill_a_s=5e-3,
        prefill_b_s_per_token=3e-5,
        prefill_c_s_per_token2=1e-9,
        kv_tokens=4096,
    )
    trainer = trainer_law()
    profile = MeasuredProfile(
        version=PROFILE_VERSION,
        host="here",
        device="a processor, 2 cores",
        model=f"embedded policy, hidden {hidden}, 4 layers, float32",
        measured_on="today",
        clock="cpu",
        software={},
        engines=(EngineLawFit(tp=1, law=law, held_out_median_error=0.02, num_cells=15),),
        trainers=(trainer,),
        max_context_tokens=2048,
    )
    write_measured(profile, folder / "host.yaml")
    settings = (
        f"planner.profile={folder / 'host.yaml'}",
        f"planner.model={folder}",
        "planner.gpus_per_node=4",
        "planner.modes=[asynchronous]",
    )
    return [word for setting in settings for word in ("--set", setting)]


def planned(capfd: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    result = CliRunner().invoke(app, ["plan", *arguments, "--json"])
    out = capfd.readouterr().out
    assert result.exit_code == 0, result.output
    return json.loads(out.splitlines()[-1])


def test_a_calibrated_host_is_planned_by_its_measurements(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    history = tmp_path / "history.jsonl"
    history.write_text(json.dumps({"prompt_tokens": 60, "generated_tokens": [30, 20], "tool_tokens": [40], "tool_s": [0.01]}))
    found = planned(capfd, QUICKSTART, *host_profile(tmp_path), "--history", str(history))
    best = found["best"]
    assert best["train"]["tp"] == best["train"]["pp"] == 1
    assert found["trainer_costs"].startswith("tp 1 pp 1 measured today (held-out median error 3.0%)")
    assert "tp 1 measured today (held-out median error 2.0%)" in found["engine_costs"]
    share = load_config(Path(QUICKSTART)).rollout
    count = share.groups_per_step * share.group_size / best["train"]["dp"]
    micro_batches = math.ceil(count * 150 / best["train"]["micro_batch_tokens"])
    busy_s = micro_batches * 0.01 + count * 150 * 1e-4 + count * 150**2 * 5e-8 + 0.005
    assert best["forecast"]["t_train_s"] == pytest.approx(busy_s, rel=0.02), "the rest is the reduction over replicas"


def test_a_profile_of_another_model_or_device_is_not_used_and_the_plan_says_so(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    settings = host_profile(tmp_path, hidden=256)
    assert "was measured with embedded policy, hidden 256" in planned(capfd, QUICKSTART, *settings)["trainer_costs"]
    on_gpus = planned(capfd, CONFIG, "--set", f"planner.profile={tmp_path / 'host.yaml'}")
    assert "was measured on a processor, 2 cores, this plan is for A800-SXM4-80GB" in on_gpus["engine_costs"]


def test_a_damaged_profile_is_one_sentence(tmp_path: Path) -> None:
    settings = host_profile(tmp_path)
    (tmp_path / "host.yaml").write_text("version: [")
    result = CliRunner().invoke(app, ["plan", QUICKSTART, *settings])
    assert result.exit_code == 2
    assert "is no calibration profile" in result.stderr


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
