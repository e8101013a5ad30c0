"""Which trainings a comparison asks for."""

from pathlib import Path

import pytest

from flows.study_parameters import CompareParameters
from flows.trainings import runnable_trainings
from libra_core.config.comparison import asked_trainings, compares_trainings, load_comparison
from libra_core.errors import ConfigError

SMALL, LARGE = Path("configs/study/real_small.yaml"), Path("configs/study/baselines_48gpu.yaml")
NAMES = ["verl_colocated", "static_uniform", "greedy_heuristic", "areal_static_optimal", "dynamic", "libra"]


def test_the_shipped_comparisons_have_the_six_baselines_and_studies_are_told_apart() -> None:
    for file in (SMALL, LARGE):
        assert list(load_comparison(file).files) == NAMES
        assert compares_trainings(file)
    assert not compares_trainings("configs/study/48gpu.yaml")


def test_runs_of_one_seed_draw_the_same_prompts_and_samples() -> None:
    """Seed, workload and batch fix both."""
    found = runnable_trainings(load_comparison(SMALL), [])
    configs = [(training.seed, config) for training, config in found if not isinstance(config, str)]
    assert len(configs) == 12
    for seed, config in configs:
        first = configs[0][1]
        assert config.seed == seed
        assert (config.workload, config.model) == (first.workload, first.model)
        for key in ("groups_per_step", "group_size", "temperature", "max_turns", "max_new_tokens", "max_context_tokens"):
            assert getattr(config.rollout, key) == getattr(first.rollout, key)


def test_each_seed_runs_all_baselines_before_the_next_begins() -> None:
    asked = asked_trainings(load_comparison(SMALL, seeds=2, chosen=["libra", "dynamic"]))
    assert [training.label for training in asked] == ["dynamic-s1", "libra-s1", "dynamic-s2", "libra-s2"]


def test_a_baseline_that_its_backend_cannot_run_is_a_sentence_and_the_others_run() -> None:
    found = {training.baseline: config for training, config in runnable_trainings(load_comparison(LARGE, seeds=1), [])}
    refused = {name: config for name, config in found.items() if isinstance(config, str)}
    assert list(refused) == ["dynamic"]
    assert "does not go with backend.kind = simulated" in refused["dynamic"]


def test_a_mistake_in_every_training_is_refused_before_any_starts() -> None:
    with pytest.raises(ConfigError, match=r"none of the baselines can run: unknown key rollout\.stalenes"):
        runnable_trainings(load_comparison(SMALL), ["rollout.stalenes=2"])


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"chosen": ["liber"]}, "chosen names 'liber', which is no baseline; there are verl_colocated"),
        ({"changes": {"liber": ["seed=1"]}}, "changes names 'liber'"),
        ({"steps": 1}, "skipped_steps = 1 leaves none of 1 steps to count; lower it"),
        ({"seeds": 0}, "seeds: input should be greater than or equal to 1"),
    ],
)
def test_mistakes_of_the_comparison_are_sentences(changes: dict[str, object], sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        load_comparison(SMALL, **changes)


def test_what_only_a_simulated_study_has_is_refused_for_trainings_and_the_other_way_round() -> None:
    with pytest.raises(ConfigError, match="--workloads is for simulated studies"):
        CompareParameters(study=str(SMALL), workloads=["search_r1"]).load_trainings()
    with pytest.raises(ConfigError, match="compares real trainings"):
        CompareParameters(study=str(SMALL)).load()
