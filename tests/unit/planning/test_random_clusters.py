"""Whatever the cluster, model and history: what is returned fits, and no TP group spans nodes."""

from dataclasses import replace
from functools import cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from libra_core.costs.api import DeviceProfile, ModelFacts, RolloutCosts, TrainingCosts, load_device, load_model, publication_time
from libra_core.errors import ResourceError
from libra_core.planning.confusion import RouterSkill
from libra_core.planning.joint_search import plan_resources
from libra_core.planning.problem import Cluster, Costs, ModelShape, PlanningProblem, Regime
from libra_core.planning.training_tree import shape_of
from libra_core.types.forecast import Candidate, Mode, PlanReport
from support.planning import heavy_tailed

DEVICES = ("a100_sxm_80", "a800_sxm_80", "h100_sxm_80")
MODELS = ("qwen3_4b", "qwen3_14b", "qwen3_30b_a3b", "qwen2.5_7b", "llama3_8b", "llama3_70b")


@cache
def evaluators(device_name: str, model_name: str, node: int) -> tuple[DeviceProfile, ModelFacts, Costs]:
    device, model = load_device(device_name), load_model(model_name)
    trainer = TrainingCosts(device, model, node_size=node)
    costs = Costs(
        engines=RolloutCosts(device, model).laws(), trainer=trainer.law(), publication_s=publication_time(device, model)
    )
    return device, model, costs


@st.composite
def problems(draw: st.DrawFn) -> tuple[DeviceProfile, ModelFacts, PlanningProblem]:
    node = draw(st.sampled_from([4, 8, 8, 8]))
    device, model, costs = evaluators(draw(st.sampled_from(DEVICES)), draw(st.sampled_from(MODELS)), node)
    batch = draw(st.sampled_from([16, 64, 192, 256, 720]))
    longest = draw(st.sampled_from([8192, 20480, 40960]))
    router = draw(st.sampled_from([None, RouterSkill(accuracy=0.8, tail_recall=0.6)]))
    asked = PlanningProblem(
        cluster=Cluster(num_gpus=draw(st.integers(2, 96)), gpus_per_node=node),
        model=ModelShape.of(model),
        regime=Regime(
            batch=batch,
            group_size=8,
            staleness=draw(st.integers(0, 4)),
            age_slack=draw(st.integers(0, 1)),
            longest_tokens=longest,
            modes=draw(st.sampled_from([tuple(Mode), (Mode.ASYNCHRONOUS,)])),
        ),
        lengths=heavy_tailed(64, draw(st.integers(0, 50)), scale=draw(st.sampled_from([0.1, 0.3, 1.0]))),
        costs=costs,
        router=router,
    )
    return device, model, asked


def check_fits(device: DeviceProfile, model: ModelFacts, asked: PlanningProblem, candidate: Candidate) -> None:
    costs, train = asked.costs, candidate.plan.train
    memory = costs.trainer.estimate(
        shape_of(train), asked.lengths.training_load(asked.regime.batch, asked.regime.longest_tokens)
    ).memory
    assert memory.total_bytes <= device.memory_bytes
    assert candidate.forecast.train_bytes_per_gpu == memory.total_bytes
    for tp, slots in candidate.slots_per_engine:
        room = costs.engines[tp].kv_tokens
        assert model.weight_bytes + room * model.kv_bytes_per_token <= tp * device.memory_bytes
        assert room >= asked.regime.longest_tokens
        one_class = len(candidate.slots_per_engine) == 1  # a class of short trajectories holds more of them
        assert not one_class or (slots - 1) * asked.lengths.mean_context <= asked.regime.kv_fill * room
        assert model.num_heads % tp == 0
    assert model.num_layers % train.pp == 0
    assert asked.regime.batch >= train.dp


def answer(asked: PlanningProblem) -> PlanReport | str:
    """A plan, or the sentence that says why there is none."""
    try:
        return plan_resources(asked)
    except ResourceError as error:
        return str(error)


def check_problem(device: DeviceProfile, model: ModelFacts, asked: PlanningProblem) -> None:
    report = answer(asked)
    if isinstance(report, str):
        assert report.startswith(f"no plan for {asked.cluster.num_gpus} GPUs: ")
        return
    for candidate in (report.best, *report.runner_ups):
        check_fits(device, model, asked, candidate)
        assert candidate.num_gpus <= asked.cluster.num_gpus
    sizes = asked.cluster.node_sizes
    for role in ("train", "engine"):
        used = [(group.node, gpu) for group in report.placement for gpu in group.gpus if group.role == role]
        assert len(used) == len(set(used))
        assert all(gpu < sizes[node] for node, gpu in used)
    everything = [(group.node, gpu) for group in report.placement for gpu in group.gpus]
    assert report.best.mode is Mode.COLOCATED or len(everything) == len(set(everything))
    degrees = sorted(len(group.gpus) for group in report.placement if group.role == "engine")
    assert degrees == sorted(report.best.plan.rollout.degrees)
    groups = [len(group.gpus) for group in report.placement if group.role == "train"]
    assert groups == [report.best.plan.train.tp] * (report.best.plan.train.num_gpus // report.best.plan.train.tp)


@settings(max_examples=15, deadline=None)
@given(drawn=problems())
def test_plans_fit_memory_and_nodes(drawn: tuple[DeviceProfile, ModelFacts, PlanningProblem]) -> None:
    check_problem(*drawn)


@pytest.mark.slow
@settings(max_examples=1200, deadline=None)
@given(drawn=problems())
def test_plans_fit_memory_and_nodes_in_many_cases(drawn: tuple[DeviceProfile, ModelFacts, PlanningProblem]) -> None:
    check_problem(*drawn)


@pytest.mark.parametrize(("model", "gpus"), [("qwen3_14b", 2), ("llama3_70b", 8)])
def test_models_too_large_for_the_cluster_are_refused(model: str, gpus: int) -> None:
    device, facts, costs = evaluators("a800_sxm_80", model, 8)
    asked = PlanningProblem(
        cluster=Cluster(num_gpus=gpus),
        model=ModelShape(num_layers=facts.num_layers),
        regime=Regime(batch=64, group_size=8),
        lengths=heavy_tailed(64),
        costs=costs,
    )
    with pytest.raises(ResourceError, match="no training layout fits"):
        plan_resources(replace(asked, cluster=Cluster(num_gpus=gpus, gpus_per_node=min(8, device.gpus_per_node))))
