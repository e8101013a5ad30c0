"""Other clusters under the same trajectories."""

import json
from pathlib import Path

import pytest

from flows.command_line.whatif import WhatIfParameters, source_study
from flows.command_line.whatif_run import read_run
from libra_core.config import load_config, resolved_yaml
from libra_core.errors import ConfigError, ResourceError
from libra_core.planning.history_file import read_history
from libra_core.simulation.backend import SimulatedSession
from libra_core.simulation.study.config import load_study, load_systems
from libra_core.simulation.study.recorded import RecordedRun, plans_on, recorded_run, replay_on
from libra_core.simulation.study.run import run_system, workload
from libra_core.simulation.study.whatif import Goal, replay, sizes_of
from libra_core.simulation.workload.laws import load_law
from libra_core.tracking.jsonl import append_metrics, read_metrics
from libra_core.tracking.lengths import FILE_NAME, LengthLog
from libra_core.tracking.metrics import iteration_metrics

STUDY = load_study("configs/study/48gpu.yaml", steps=10, seeds=1, groups_per_step=8)
LAW = load_law(STUDY.path("workloads/search_r1.yaml"))
LIBRA = load_systems(STUDY)["libra"]


def curve(sizes: list[int], goal: Goal):
    return replay(STUDY, ("libra", LIBRA), LAW, sizes, goal, report=lambda label, share: None)


def test_the_unchanged_setting_reproduces_the_recorded_iteration_time() -> None:
    recorded = run_system(STUDY, "libra", LIBRA, LAW, 1).summary.t_iter_s
    assert curve([48], Goal()).points[0].t_iter_s == pytest.approx(recorded, rel=1e-9)


def test_more_gpus_are_faster_and_the_cheapest_that_will_do_is_found() -> None:
    found = curve([2, 16, 32, 64], Goal(tokens_per_s=2500))
    rates = [point.tokens_per_s.mean for point in found.points]
    assert found.too_small == (2,)
    assert rates == sorted(rates)
    cheapest = next(point for point in found.points if point.gpus == found.cheapest_gpus)
    assert cheapest.tokens_per_s.low >= 2500
    assert all(point.tokens_per_s.low < 2500 for point in found.points if point.gpus < cheapest.gpus)


def test_a_goal_out_of_reach_is_said_to_be() -> None:
    assert curve([16], Goal(hours=1e-6)).cheapest_gpus is None


def test_a_cluster_on_which_nothing_fits_is_refused() -> None:
    with pytest.raises(ResourceError, match=r"fits on none of \[2\] GPUs"):
        curve([2], Goal())


@pytest.mark.parametrize(("text", "sizes"), [("48", [48]), ("8..32", [8, 16, 24, 32]), ("64,16", [16, 64])])
def test_sizes_are_read(text: str, sizes: list[int]) -> None:
    assert sizes_of(text) == sizes


@pytest.mark.parametrize("text", ["many", "0..8", "8..9999", "64..8"])
def test_wrong_sizes_are_refused_in_a_sentence(text: str) -> None:
    with pytest.raises(ConfigError, match="--gpus"):
        sizes_of(text)


def test_a_folder_without_a_study_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"holds no results\.json"):
        source_study(WhatIfParameters(source=tmp_path))


def test_results_of_another_kind_are_refused(tmp_path: Path) -> None:
    (tmp_path / "results.json").write_text("[]")
    with pytest.raises(ConfigError, match=r"holds no results\.json"):
        source_study(WhatIfParameters(source=tmp_path))


def test_a_study_folder_remembers_its_study_and_takes_changes(tmp_path: Path) -> None:
    (tmp_path / "results.json").write_text(json.dumps({"study": STUDY.model_dump(mode="json")}))
    study = source_study(WhatIfParameters(source=tmp_path, overrides=["staleness=3"]))
    assert study == STUDY.model_copy(update={"staleness": 3})


def test_recorded_lengths_are_replayed_instead_of_the_law(tmp_path: Path) -> None:
    path = tmp_path / "lengths.jsonl"
    rows = [{"prompt_tokens": 10 + i, "generated_tokens": [100 + i, 50], "tool_tokens": [20], "tool_s": [1.5]} for i in range(32)]
    path.write_text("\n".join(json.dumps(row) for row in rows))
    study = STUDY.model_copy(update={"history": str(path)})
    work = workload(study, LAW, 4, seed=1)
    assert len(work) == 4 * study.batch
    assert set(work.prompt_tokens.tolist()) <= {float(record.prompt_tokens) for record in read_history(path)}
    assert run_system(study, "libra", LIBRA, LAW, 1).summary.tokens_per_s > 0


def test_hindsight_over_recorded_lengths_does_not_look_at_the_law(tmp_path: Path) -> None:
    path = tmp_path / "lengths.jsonl"
    rows = [{"prompt_tokens": 10, "generated_tokens": [20_000 + 100 * i]} for i in range(32)]
    path.write_text("\n".join(json.dumps(row) for row in rows))
    study = STUDY.model_copy(update={"history": str(path)})
    hindsight = load_systems(study)["static_hindsight"]
    laws = [load_law(study.path(f"workloads/{name}.yaml")) for name in ("search_r1", "r2e_gym")]
    assert len({run_system(study, "static_hindsight", hindsight, law, 1).first_plan for law in laws}) == 1


def simulated_run(folder: Path, *overrides: str) -> RecordedRun:
    """A run folder as `libra train` with the simulated backend leaves it, read back."""
    folder.mkdir()
    steps = 24
    sizes = (f"training.steps={steps}", "rollout.groups_per_step=8")
    config = load_config("configs/experiment/simulated_48gpu.yaml", [*sizes, *overrides])
    (folder / "config.yaml").write_text(resolved_yaml(config))
    session, log = SimulatedSession(config, folder), LengthLog(folder)
    for step in range(steps):
        rollout = session.rollout.take_batch(step)
        update = session.trainer.update(rollout.batch_id, rollout.policy_version)
        publication = session.publish(update.policy_version)
        report = session.iteration_report(step, rollout, session.score(rollout.batch_id), update, publication)
        append_metrics(folder, step, iteration_metrics(report))
        log.append(session.lengths(rollout.batch_id))
    return read_run(folder)


def t_iter_of(run: RecordedRun, *overrides: str) -> float:
    changed = load_config("configs/experiment/simulated_48gpu.yaml", ["rollout.groups_per_step=8", *overrides])
    return replay_on(run, run.plan, changed).summary(48).t_iter_s


def test_a_replayed_run_takes_as_long_as_it_did_and_a_changed_one_as_long_as_the_simulator_says(tmp_path: Path) -> None:
    run = simulated_run(tmp_path / "run")
    assert t_iter_of(run) == pytest.approx(run.t_iter_s, rel=0.1)
    changed = ("rollout.staleness=3", "rollout.age_slack=0")
    assert t_iter_of(run, *changed) == pytest.approx(simulated_run(tmp_path / "changed", *changed).t_iter_s, rel=0.1)
    assert t_iter_of(run, *changed) < 0.95 * t_iter_of(run)


def test_a_measured_run_finds_how_fast_its_engines_were(tmp_path: Path) -> None:
    """Laws of its engines are known up to a factor only, the trainer's not at all."""
    run = simulated_run(tmp_path / "run")
    real = run.config.model_copy(update={"backend": run.config.backend.model_copy(update={"kind": "cpu"})})
    wrong = {tp: engine.scaled(2.0) for tp, engine in run.truth.engines.items()}
    measured = recorded_run(real, read_metrics(tmp_path / "run"), read_history(tmp_path / "run" / FILE_NAME), wrong)
    ((tp, _),) = run.plan.rollout.engines
    assert measured.truth.engines[tp].a_s == pytest.approx(run.truth.engines[tp].a_s, rel=0.1)
    assert replay_on(measured, run.plan).summary(48).t_iter_s == pytest.approx(run.t_iter_s, rel=0.1)


def test_splits_of_another_cluster_keep_the_degrees_and_the_size(tmp_path: Path) -> None:
    run = simulated_run(tmp_path / "run")
    plans = plans_on(run, 64, run.config)
    assert 1 < len(plans) <= 9
    assert all(plan.train.tp == run.plan.train.tp and plan.num_gpus <= 64 for plan in plans)
    assert plans_on(run, 4, run.config) == []


def test_a_run_without_a_length_log_or_with_too_few_steps_is_refused(tmp_path: Path) -> None:
    run = simulated_run(tmp_path / "run")
    rows, records = read_metrics(tmp_path / "run"), read_history(tmp_path / "run" / FILE_NAME)
    with pytest.raises(ConfigError, match=r"holds 6 whole steps of 128 trajectories, and a replay needs 9"):
        recorded_run(run.config, rows[:6], records, {})
    (tmp_path / "run" / FILE_NAME).unlink()
    with pytest.raises(ConfigError, match=r"holds no lengths\.jsonl"):
        read_run(tmp_path / "run")
