"""From a configuration that asks for a plan to one that says what runs, without starting anything."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from flows.cli import app
from flows.parameters import TrainParameters
from flows.planned import plan_request, planned
from libra_core.config import LibraConfig, load_config, plan_of
from libra_core.errors import ConfigError, ResourceError
from libra_core.planning.joint_search import plan_resources
from libra_core.planning.named_layout import forecast_named
from libra_core.tracking.planned import PLAN_NAME, RECORD_NAME, keep_plan, plan_outcome
from libra_core.tracking.run_folder import make_run_folder

QUICKSTART = "configs/experiment/quickstart.yaml"
SIMULATED = "configs/experiment/simulated_48gpu.yaml"
LINE = json.dumps({"prompt_tokens": 50, "generated_tokens": [20, 10], "tool_tokens": [30], "tool_s": [0.0], "step": 3}) + "\n"


def quickstart(root: Path, *overrides: str) -> LibraConfig:
    return load_config(QUICKSTART, [f"run.root={root}", *overrides])


def written(root: Path, config: str = QUICKSTART, *overrides: str) -> Path:
    words = [word for text in (f"run.root={root}", *overrides) for word in ("--set", text)]
    result = CliRunner().invoke(app, ["plan", config, "--write", str(root / "plan.yaml"), *words])
    assert result.exit_code == 0, result.output
    return root / "plan.yaml"


def test_no_plan_is_asked_for_and_nothing_changes(tmp_path: Path) -> None:
    config = quickstart(tmp_path)
    chosen = planned(config)
    assert (chosen.config, chosen.record, chosen.line) == (config, None, "")


def test_auto_runs_what_the_planner_chose_on_the_gpus_of_the_configuration(tmp_path: Path) -> None:
    chosen = planned(quickstart(tmp_path, "plan=auto"))
    report = plan_resources(plan_request(quickstart(tmp_path)).loaded.problem)
    assert chosen.config.plan is None
    assert plan_of(chosen.config) == report.best.plan
    assert chosen.config.rollout.mode == report.best.mode.value
    assert chosen.config.streamed is report.best.streamed
    assert chosen.config.planner.total_gpus == plan_of(quickstart(tmp_path)).num_gpus
    assert chosen.record is not None
    assert chosen.record.values["chosen"]["forecast"]["t_iter_s"] == report.best.forecast.t_iter_s
    assert len(chosen.record.values["others"]) == len(report.runner_ups)
    for part in ("forecast T_iter", "next ", "within 192 tokens", "kernels of CPU-host"):
        assert part in chosen.line


def test_a_plan_that_was_written_runs_as_it_was_planned(tmp_path: Path) -> None:
    file = written(tmp_path)
    by_file, by_auto = (planned(quickstart(tmp_path, f"plan={asked}")) for asked in (file, "auto"))
    assert by_file.config == by_auto.config
    assert by_file.record is not None
    assert by_auto.record is not None
    assert by_file.record.values["chosen"] == by_auto.record.values["chosen"], "a named layout has the planner's own forecast"


def test_a_plan_can_be_extended_like_any_file_of_keys(tmp_path: Path) -> None:
    file = written(tmp_path)
    own = tmp_path / "own.yaml"
    own.write_text(f"extends: {file.name}\nseed: 3\n")
    assert plan_of(load_config(own)) == plan_of(planned(quickstart(tmp_path, f"plan={file}")).config)


@pytest.mark.parametrize(
    ("overrides", "what"),
    [
        (("model.tiny.num_layers=8",), "model embedded policy (4 layers"),
        (("planner.num_gpus=4", "planner.gpus_per_node=4"), "cluster 2 x CPU-host in nodes of 2 there, 4 x"),
    ],
)
def test_a_plan_for_another_model_or_cluster_is_one_sentence(tmp_path: Path, overrides: tuple[str, ...], what: str) -> None:
    file = written(tmp_path)
    with pytest.raises(ConfigError, match="is a plan for something else") as caught:
        planned(quickstart(tmp_path, f"plan={file}", *overrides))
    assert what in str(caught.value)


def test_a_plan_of_another_version_is_one_sentence(tmp_path: Path) -> None:
    file = written(tmp_path)
    file.write_text(file.read_text().replace('"version": "', '"version": "9.'))
    with pytest.raises(ConfigError, match=r"version 9\..* there, "):
        planned(quickstart(tmp_path, f"plan={file}"))


@pytest.mark.parametrize(
    ("text", "sentence"), [(None, "cannot read the plan"), ("seed: 1\n", "is no plan: no line of it begins")]
)
def test_a_word_or_file_that_is_no_plan_is_one_sentence(tmp_path: Path, text: str | None, sentence: str) -> None:
    if text is not None:
        (tmp_path / "automatic").write_text(text)
    with pytest.raises(ConfigError, match=sentence):
        planned(quickstart(tmp_path, f"plan={tmp_path / 'automatic'}"))


def test_where_no_plan_runs_the_planner_says_why(tmp_path: Path) -> None:
    config = load_config("configs/experiment/r2e_gym_48gpu.yaml", ["plan=auto", "planner.nodes=1", f"run.root={tmp_path}"])
    with pytest.raises(ResourceError, match="no plan that this version runs fits 8 GPUs"):
        planned(config)


def test_lengths_come_from_the_newest_earlier_run_of_the_same_workload(tmp_path: Path) -> None:
    config = quickstart(tmp_path, "rollout.groups_per_step=2", "rollout.group_size=2")
    other = quickstart(tmp_path, "rollout.groups_per_step=2", "rollout.group_size=2", "workload.two_hop_share=0.9")
    same, different, damaged = (make_run_folder(item) for item in (config, other, config))
    for folder in (same, different):
        (folder / "lengths.jsonl").write_text(LINE * 4)
    (damaged / "lengths.jsonl").write_text("[]\n" * 9)
    assert plan_request(config).loaded.lengths_source == str((same / "lengths.jsonl").resolve())
    (same / "lengths.jsonl").write_text(LINE * 3)
    assert "generated after search_r1" in plan_request(config).loaded.lengths_source, "less than a batch says too little"


def test_a_resumed_run_keeps_the_plan_that_it_chose(tmp_path: Path) -> None:
    first = planned(quickstart(tmp_path, "plan=auto"))
    assert first.record is not None
    run_dir = make_run_folder(first.config)
    keep_plan(run_dir, first.record)
    chosen = f"micro_batch_tokens: {first.config.training.micro_batch_tokens}"
    assert chosen in first.record.text
    (run_dir / PLAN_NAME).write_text(first.record.text.replace(chosen, "micro_batch_tokens: 2048"))
    again = planned(quickstart(tmp_path, "plan=auto", f"run.resume={run_dir}"))
    assert again.config.training.micro_batch_tokens == 2048


def test_a_layout_that_is_named_is_forecast_beside_the_best(tmp_path: Path) -> None:
    words = ["plan", SIMULATED, "--set", f"run.root={tmp_path}", "--layout", "rollout.engines=[{tp: 4, count: 4}]"]
    result = CliRunner().invoke(app, words, env={"COLUMNS": "200"})
    assert result.exit_code == 0, result.output
    (line,) = (line for line in result.stdout.splitlines() if line.startswith("layout "))
    assert "rollout on 16: 4 x tp 4" in line
    assert "against the best" in line


def test_a_layout_that_does_not_fit_is_one_sentence(tmp_path: Path) -> None:
    request = plan_request(load_config(SIMULATED, [f"run.root={tmp_path}", "training.layout={tp: 1, dp: 2}"]))
    with pytest.raises(ConfigError, match="does not run here"):
        forecast_named(request.loaded.problem, request.config)


def test_the_form_of_the_deployment_takes_it(tmp_path: Path) -> None:
    parameters = TrainParameters.model_validate({"config": QUICKSTART, "overrides": ["plan=auto", f"run.root={tmp_path}"]})
    pattern = TrainParameters.model_json_schema()["properties"]["overrides"]["items"]["pattern"]
    assert "plan" in pattern
    assert planned(parameters.load()).record is not None


def test_a_forecast_is_held_against_the_steady_iterations(tmp_path: Path) -> None:
    values = {"asked": "auto", "staleness": 1, "chosen": {"forecast": {"t_iter_s": 9.0}}}
    assert plan_outcome(tmp_path, [{"iteration/t_iter_s": 1.0}]) == {}
    (tmp_path / RECORD_NAME).write_text(json.dumps(values))
    rows = [{"iteration/t_iter_s": seconds} for seconds in (90.0, 50.0, 10.0, 10.0, 1.0)]
    found = plan_outcome(tmp_path, rows)
    assert (found["t_iter_measured_s"], found["t_iter_ratio"], found["measured_steps"]) == (10.0, 0.9, 2)
