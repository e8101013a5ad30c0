"""Systems, statistics and bounds of the study."""

import json
from pathlib import Path

import numpy as np
import pytest

from libra_core.errors import ConfigError
from libra_core.planning.lengths import length_table
from libra_core.simulation.study.beliefs import length_table_of
from libra_core.simulation.study.bounds import fluid_tokens_per_s
from libra_core.simulation.study.compare import compare
from libra_core.simulation.study.config import StudyConfig, SystemConfig, load_laws, load_study, load_systems
from libra_core.simulation.study.run import run_system, workload
from libra_core.simulation.study.statistics import Pace, ratio
from libra_core.simulation.truth import Mismatch, load_truth
from libra_core.simulation.workload.laws import WorkloadLaw, load_law
from libra_core.tracking.study_figures import draw_figures
from support.breakdowns import require_breakdowns_that_add_up
from support.simulation import agents

STUDY = Path("configs/study/48gpu.yaml")


def small(**changes: object) -> StudyConfig:
    return load_study(STUDY, **({"steps": 12, "seeds": 2, "groups_per_step": 8} | changes))


def law_of(study: StudyConfig, name: str) -> WorkloadLaw:
    return load_law(study.path(f"workloads/{name}.yaml"))


def test_every_number_of_every_workload_names_its_source() -> None:
    study = small()
    for path in study.workloads:
        for name, parameter in load_law(study.path(path)).parameters().items():
            assert len(parameter.source) > 5, f"{path}: {name}"


def test_the_truth_is_made_without_the_cost_evaluator() -> None:
    """Only the planners' beliefs may know it."""
    room = Path("libra_core/simulation")
    allowed = {room / "study" / "beliefs.py"}
    guilty = [path for path in room.rglob("*.py") if "from libra_core.costs" in path.read_text() and path not in allowed]
    assert guilty == []


def test_a_table_of_flat_arrays_equals_the_one_of_records() -> None:
    work = agents(64)
    records = length_table([work.record(i) for i in range(len(work))])
    arrays = length_table_of(work)
    assert len(arrays) == len(records)
    for name in ("weight", "turns", "prompt_tokens", "generated_tokens", "tool_tokens", "prefill_pairs", "decode_context"):
        assert getattr(arrays, name) == pytest.approx(getattr(records, name)), name


def test_the_accounts_of_every_system_add_up_with_little_staleness() -> None:
    require_breakdowns_that_add_up(staleness=1)


def test_no_system_passes_the_bound_without_latency() -> None:
    study = small(staleness=4)
    truth = load_truth(study.path(study.truth))
    law = law_of(study, "search_r1")
    bound = fluid_tokens_per_s(study, truth, workload(study, law, study.steps, 1), blocks=4)
    for name, system in load_systems(study).items():
        if name in {"libra", "areal_static_optimal", "colocated_partial"}:
            assert run_system(study, name, system, law, 1).summary.tokens_per_s < bound


def test_streaming_and_two_bounds_gain_over_the_best_static_split() -> None:
    study = small(groups_per_step=16)
    systems = load_systems(study)
    law = law_of(study, "search_r1")
    static = run_system(study, "areal_static_optimal", systems["areal_static_optimal"], law, 1).summary
    libra = run_system(study, "libra", systems["libra"], law, 1).summary
    assert libra.tokens_per_s > 1.15 * static.tokens_per_s
    assert libra.staleness_mean <= static.staleness_mean + 0.1


def test_short_uniform_trajectories_leave_libra_next_to_nothing_to_gain() -> None:
    """No tail, no drift, no tools: the best static split is all there is. Libra costs under 1 % against the planner's static
    split and gains nothing over the best in hindsight."""
    study = small(staleness=1, steps=16, groups_per_step=16)
    flat = {name: 0.01 for name in ("trajectory_sigma", "turns_sigma", "turn_sigma", "prompt_sigma", "tool_tokens_sigma")}
    law = law_of(study, "search_r1").changed(**flat, tool_s=0.01, tool_sigma=0.01).with_drift(kind="flat")
    systems = load_systems(study)
    static = run_system(study, "static", systems["areal_static_optimal"], law, 1).summary.tokens_per_s
    best = run_system(study, "best", systems["static_hindsight"], law, 1).summary.tokens_per_s
    libra = run_system(study, "libra", systems["libra"], law, 1).summary.tokens_per_s
    assert 0.99 * static < libra < 1.01 * best


def test_a_run_repeats_bit_for_bit() -> None:
    study = small()
    law, system = law_of(study, "search_r1"), load_systems(study)["libra"]
    first, second = (run_system(study, "libra", system, law, 7) for _ in range(2))
    assert repr(first.summary) == repr(second.summary)  # a field may be nan
    assert first.steps == second.steps


def test_a_study_pairs_its_seeds_and_ranks_against_its_baseline() -> None:
    study = small(chosen=("areal_static_optimal", "libra", "oracle"), workloads=("workloads/search_r1.yaml",))
    result = compare(study, lambda label, share: None, processes=1)
    rows = {row.system: row for row in result.rows}
    assert rows["areal_static_optimal"].over_baseline.mean == 1.0
    assert rows["areal_static_optimal"].over_baseline.low == pytest.approx(1.0)
    assert rows["libra"].over_baseline.low <= rows["libra"].over_baseline.mean <= rows["libra"].over_baseline.high
    assert 0 < rows["libra"].of_bound < 1
    assert rows["oracle"].of_oracle == 1.0
    assert len(result.outcomes) == 6


def test_an_interval_covers_the_ratio_and_shrinks_with_steps() -> None:
    random = np.random.default_rng(0)

    def runs(steps: int, factor: float) -> list[Pace]:
        return [Pace(tokens=np.full(steps, factor * 100.0), seconds=10 + random.random(steps)) for _ in range(3)]

    wide, narrow = (ratio(runs(steps, 1.3), runs(steps, 1.0)) for steps in (20, 400))
    assert wide.low < 1.3 < wide.high
    assert narrow.high - narrow.low < wide.high - wide.low


def test_an_unknown_system_is_refused_with_the_names_there_are() -> None:
    with pytest.raises(ConfigError, match=r"no system 'librra'.*areal_static_optimal"):
        load_systems(small(chosen=("librra",)))


def test_a_study_that_skips_all_its_steps_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"48gpu\.yaml: skipped_steps = 12 leaves none of 12 steps"):
        small(skipped_steps=12)


def test_a_mistake_in_a_system_names_the_system(tmp_path: Path) -> None:
    (tmp_path / "systems.yaml").write_text("mine: {about: wrong, split: halves}")
    with pytest.raises(ConfigError, match=r"systems\.yaml: mine: split: input should be"):
        load_systems(small(systems=str(tmp_path / "systems.yaml")))


def test_a_history_without_a_trajectory_is_refused(tmp_path: Path) -> None:
    (tmp_path / "empty.jsonl").touch()
    study = small(history=str(tmp_path / "empty.jsonl"))
    with pytest.raises(ConfigError, match="holds no trajectory"):
        workload(study, law_of(study, "search_r1"), study.steps, 1)


def test_a_fleet_belongs_to_a_fixed_fleet() -> None:
    with pytest.raises(ValueError, match="fleet names the engines"):
        SystemConfig(about="wrong", split="fixed_fleet")


def test_a_planner_that_corrects_its_beliefs_survives_wrong_ones() -> None:
    """Training takes twice as long as it believes; without a correction the first split stays."""
    study = small(groups_per_step=16, steps=40, seeds=1).model_copy(update={"mismatch": Mismatch(train=2.0)})
    law, systems = law_of(study, "dapo_math"), load_systems(study)
    wrong = run_system(study, "wrong", systems["libra_without_correction"], law, 1).summary
    corrected = run_system(study, "libra", systems["libra"], law, 1).summary
    assert corrected.train_gpus > wrong.train_gpus
    assert corrected.tokens_per_s > 1.1 * wrong.tokens_per_s


def test_a_sweep_runs_the_study_again_under_every_setting(tmp_path: Path) -> None:
    sweeps = {
        "staleness": {"about": "η", "common": ("groups_per_step=4",), "points": {"0": ("staleness=0",), "2": ("staleness=2",)}}
    }
    study = small(seeds=1, chosen=("areal_static_optimal", "libra"), workloads=("workloads/search_r1.yaml",), sweeps=sweeps)
    result = compare(study, lambda label, share: None, processes=1)
    assert [point.label for point in result.sweeps["staleness"]] == ["0", "2"]
    none, two = ({row.system: row for row in point.rows} for point in result.sweeps["staleness"])
    assert none["libra"].means["staleness_mean"] == 0 < two["libra"].means["staleness_mean"]
    assert two["libra"].tokens_per_s.mean > none["libra"].tokens_per_s.mean
    assert {outcome.seed for outcome in result.outcomes} == {1}
    runs = json.loads(json.dumps(result.runs_json()))
    made = draw_figures(json.loads(json.dumps(result.as_json())), runs, tmp_path)
    assert tmp_path / "sweep_staleness.png" in made


def test_a_law_changed_by_a_study_says_so_and_a_wrong_name_is_refused() -> None:
    changed = load_laws(small(law={"timeout_share": 0.3}, drift_factor=5))["r2e_gym"]
    assert (changed.timeout_share.value, changed.drift.factor) == (0.3, 5)
    assert "set by the study" in changed.timeout_share.source
    with pytest.raises(ConfigError, match=r"law\.timeouts is no parameter of a workload"):
        load_laws(small(law={"timeouts": 0.3}))
