import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from libra_core.costs.api import TrainingShape
from libra_core.errors import ResourceError
from libra_core.planning.candidates import Choice, options_of, search_inputs
from libra_core.planning.confusion import RouterSkill
from libra_core.planning.example_lengths import LAWS, example_records
from libra_core.planning.joint_search import evaluate_all, plan_resources
from libra_core.planning.lengths import length_table
from libra_core.planning.objective import solve
from libra_core.planning.placement import fits_nodes
from libra_core.planning.problem import Cluster, PlanningProblem
from libra_core.planning.training_tree import Cuts, TrainLeaf
from libra_core.types.forecast import Mode, Term
from libra_core.types.plan import Plan, RolloutLayout, TrainLayout
from support.planning import PlainTrainer, heavy_tailed, problem


def all_leaves(asked: PlanningProblem) -> list[TrainLeaf]:
    """Every layout that fits, from plain loops over all degrees."""
    found = []
    load = asked.lengths.training_load(asked.regime.batch, asked.regime.longest_tokens)
    degrees = range(1, asked.cluster.num_gpus + 1)
    for tp, pp, dp in ((tp, pp, dp) for tp in (1, 2, 4, 8) for pp in degrees for dp in degrees):
        if tp * pp * dp > asked.cluster.num_gpus or asked.model.num_layers % pp or dp > asked.regime.batch:
            continue
        most = math.ceil(load.num_sequences / dp) / (load.num_sequences / dp)
        fullest = replace(load, tokens=most * load.tokens, squared_tokens=most * load.squared_tokens)
        for tokens in asked.micro_batch_tokens:
            shape = TrainingShape(tp=tp, pp=pp, dp=dp, micro_batch_tokens=tokens)
            estimate = asked.costs.trainer.estimate(shape, fullest)
            if estimate.fit.fits and estimate.bubble_share <= 0.3 and estimate.tp_share <= 0.5:
                layout = TrainLayout(tp=tp, pp=pp, dp=dp, micro_batch_tokens=tokens)
                fixed = estimate.parts.optimizer_s + estimate.parts.dp_exposed_s
                found.append(TrainLeaf(layout=layout, t_train_s=estimate.t_train_s, fixed_s=fixed, bytes_per_gpu=0.0))
    return found


def exhaustive_least_s(asked: PlanningProblem) -> float:
    """Least iteration time over all layouts, degrees, numbers of engines, kinds of step and modes."""
    inputs = search_inputs(asked, Cuts())
    choices = []
    for leaf in all_leaves(asked):
        for tp in inputs.curves:
            for engines in range(1, asked.cluster.num_gpus // tp + 1):
                groups = {tp: engines}
                choices.append(Choice(leaf=leaf, tp=tp, engines=engines, streamed=False, mode=Mode.COLOCATED, publication_s=0.0))
                groups[leaf.layout.tp] = groups.get(leaf.layout.tp, 0) + leaf.layout.num_gpus // leaf.layout.tp
                if fits_nodes(asked.cluster, groups):
                    choices += [
                        Choice(leaf=leaf, tp=tp, engines=engines, streamed=kind, mode=Mode.ASYNCHRONOUS, publication_s=4.0)
                        for kind in (False, True)
                    ]
    fitting = [choice for choice in choices if choice.engines <= asked.cluster.groups_of(choice.tp)]
    return float(solve(options_of(fitting), inputs.curves, asked.regime).forecast_s.min())


SMALL = st.builds(
    lambda gpus, node, seed, staleness, scale: problem(
        gpus,
        48,
        cluster=Cluster(num_gpus=gpus, gpus_per_node=node),
        lengths=heavy_tailed(48, seed, scale=scale),
        staleness=staleness,
        costs=replace(problem().costs, trainer=PlainTrainer(state_bytes=120e9).law),
    ),
    gpus=st.integers(3, 12),
    node=st.sampled_from([2, 4, 8]),
    seed=st.integers(0, 1000),
    staleness=st.integers(0, 3),
    scale=st.sampled_from([0.2, 1.0, 3.0]),
)


@settings(max_examples=15, deadline=None)
@given(asked=SMALL)
def test_equals_exhaustive_search_on_small_clusters(asked: PlanningProblem) -> None:
    check_exhaustive(asked)


@pytest.mark.slow
@settings(max_examples=400, deadline=None)
@given(asked=SMALL)
def test_equals_exhaustive_search_in_many_cases(asked: PlanningProblem) -> None:
    check_exhaustive(asked)


def check_exhaustive(asked: PlanningProblem) -> None:
    try:
        found = plan_resources(asked)
    except ResourceError:
        return
    assert found.best.forecast.t_iter_s == pytest.approx(exhaustive_least_s(asked), rel=1e-6)


def test_history_repeated_ten_times_gives_the_same_plan() -> None:
    records = example_records(LAWS["r2e_gym"], 200)
    stepped = [replace(record, step=index // 20) for index, record in enumerate(records)]
    for history in (records, stepped):
        once = plan_resources(problem(48, 256, lengths=length_table(history)))
        assert plan_resources(problem(48, 256, lengths=length_table(history * 10))) == once
        assert plan_resources(problem(48, 256, lengths=length_table([item for item in history for _ in range(10)]))) == once


@pytest.mark.parametrize("gpus", [8, 16, 48, 63, 255, 256, 257, 1024, 2048])
def test_every_cluster_size_has_a_plan(gpus: int) -> None:
    found = plan_resources(problem(gpus, 768))
    assert 0 < found.best.num_gpus <= gpus
    assert len(found.runner_ups) == 5
    assert len({(item.mode, item.streamed, item.plan) for item in (found.best, *found.runner_ups)}) == 6


def test_what_does_not_fit_is_a_sentence() -> None:
    with pytest.raises(ResourceError, match="no plan for 2 GPUs: no training layout fits"):
        plan_resources(problem(2, 64))


def test_training_that_takes_every_gpu_is_a_sentence() -> None:
    asked = problem(4, 64, modes=(Mode.ASYNCHRONOUS,), costs=replace(problem().costs, trainer=PlainTrainer(gpu_bytes=61e9).law))
    with pytest.raises(ResourceError, match="leaves no engine"):
        plan_resources(asked)


def test_slow_trainer_gets_more_gpus() -> None:
    costs = problem().costs
    slow = plan_resources(problem(48, 256, costs=replace(costs, trainer=PlainTrainer(seconds_per_token=4e-3).law)))
    fast = plan_resources(problem(48, 256, costs=replace(costs, trainer=PlainTrainer(seconds_per_token=3e-4).law)))
    assert slow.best.plan.train.num_gpus > fast.best.plan.train.num_gpus


def test_more_staleness_never_slows_the_plan() -> None:
    times = [plan_resources(problem(48, 256, staleness=eta)).best.forecast.t_iter_s for eta in range(5)]
    assert times == sorted(times, reverse=True)


def test_relaxations_are_computed_and_help() -> None:
    found = plan_resources(problem(48, 256, staleness=0, streamed=(False,)))
    assert found.best.forecast.terms.binding is Term.SLOWEST_TRAJECTORY
    assert any("staleness" in item.change for item in found.relaxations)
    assert all(item.t_iter_s < found.best.forecast.t_iter_s for item in found.relaxations)


def test_tie_goes_to_the_running_plan() -> None:
    costs = replace(problem().costs, trainer=PlainTrainer(seconds_per_token=1.2e-3).law)
    asked = problem(48, 768, modes=(Mode.ASYNCHRONOUS,), streamed=(True,), staleness=2, costs=costs)
    best = plan_resources(asked).best
    tied = [item for item in plan_resources(asked).runner_ups if item.forecast.t_iter_s < best.forecast.t_iter_s * (1 + 1e-7)]
    assert tied, "the case is chosen for its tie: the trainer binds"
    running = Plan(train=tied[0].plan.train, rollout=tied[0].plan.rollout)
    again = plan_resources(replace(asked, active=running)).best
    assert (again.plan.train, again.plan.rollout) == (running.train, running.rollout)


def test_without_a_measured_router_no_mixed_fleet_is_proposed() -> None:
    found = plan_resources(problem(48, 256))
    assert all(len(item.plan.rollout.engines) == 1 for item in (found.best, *found.runner_ups))
    assert "planner.router_accuracy" in found.notes[0]


@pytest.mark.parametrize("router", [None, RouterSkill(accuracy=1.0, tail_recall=1.0)])
def test_homogeneous_fleets_of_every_degree_are_candidates_of_every_split(router: RouterSkill | None) -> None:
    _, found = evaluate_all(problem(48, 256, router=router))
    beside = [choice for choice in found.choices if choice.mode is Mode.ASYNCHRONOUS]
    for size in {choice.leaf.layout.num_gpus for choice in beside}:
        fleets = {(choice.tp, choice.engines) for choice in beside if choice.leaf.layout.num_gpus == size}
        expected = {(tp, (48 - size) // tp) for tp in (1, 2, 4, 8) if 48 - size >= tp}
        assert {tp for tp, _ in fleets} == {tp for tp, _ in expected}


def test_blind_router_makes_mixed_fleets_worse() -> None:
    def mixed_s(skill: float) -> float:
        found = plan_resources(problem(48, 256, router=RouterSkill(accuracy=skill, tail_recall=skill), streamed=(False,)))
        mixed = [item for item in (found.best, *found.runner_ups) if len(item.plan.rollout.engines) > 1]
        return min((item.forecast.t_iter_s for item in mixed), default=np.inf)

    assert mixed_s(1.0) < mixed_s(0.5)


def test_hybrid_pool_follows_the_expected_drift() -> None:
    costs = replace(problem().costs, trainer=PlainTrainer(state_bytes=20e9).law)
    still = plan_resources(problem(64, 960, drift=1.0, costs=costs)).best.plan
    moving = plan_resources(problem(64, 960, drift=2.0, costs=costs)).best.plan
    assert still.hybrid_replicas == 0
    assert moving.hybrid_replicas * moving.train.replica_gpus < moving.rollout.num_gpus
    assert moving.hybrid_replicas > 0


def test_layout_and_engines_are_plain_values() -> None:
    best = plan_resources(problem(16, 64, modes=(Mode.ASYNCHRONOUS,))).best
    assert isinstance(best.plan.rollout, RolloutLayout)
    assert best.plan.num_gpus <= 16
