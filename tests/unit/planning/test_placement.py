import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from libra_core.errors import ResourceError
from libra_core.planning.placement import fits_nodes, most_engines, place
from libra_core.planning.problem import Cluster
from libra_core.types.plan import Plan, RolloutLayout, TrainLayout


def check(cluster: Cluster, plan: Plan) -> None:
    """Every GPU once, every TP group whole on one node."""
    placed = place(cluster, plan)
    slots = [(group.node, gpu) for group in placed for gpu in group.gpus]
    assert len(slots) == len(set(slots)) == plan.num_gpus
    assert all(0 <= gpu < cluster.node_sizes[node] for node, gpu in slots)
    sizes = sorted(len(group.gpus) for group in placed)
    assert sizes == sorted([plan.train.tp] * (plan.train.num_gpus // plan.train.tp) + list(plan.rollout.degrees))


@settings(max_examples=300, deadline=None)
@given(
    gpus=st.integers(2, 70),
    node=st.integers(1, 9),
    train_tp=st.sampled_from([1, 2, 4, 8]),
    replicas=st.integers(1, 20),
    tp=st.sampled_from([1, 2, 4, 8]),
)
def test_most_engines_is_exactly_what_can_be_placed(gpus: int, node: int, train_tp: int, replicas: int, tp: int) -> None:
    cluster, train = Cluster(num_gpus=gpus, gpus_per_node=node), TrainLayout(tp=train_tp, dp=replicas)
    engines = most_engines(cluster, train, tp)
    if engines:
        check(cluster, Plan(train=train, rollout=RolloutLayout(engines=((tp, engines),))))
    with pytest.raises(ResourceError, match="do not fit"):
        place(cluster, Plan(train=train, rollout=RolloutLayout(engines=((tp, engines + 1),))))


@settings(max_examples=200, deadline=None)
@given(gpus=st.integers(2, 40), node=st.integers(1, 9), counts=st.lists(st.integers(0, 6), min_size=4, max_size=4))
def test_sums_per_degree_decide_whether_a_mixed_fleet_fits(gpus: int, node: int, counts: list[int]) -> None:
    cluster = Cluster(num_gpus=gpus, gpus_per_node=node)
    engines = tuple((tp, count) for tp, count in zip((1, 2, 4, 8), counts, strict=True) if count)
    plan = Plan(train=TrainLayout(), rollout=RolloutLayout(engines=engines))
    groups = dict(engines)
    groups[1] = groups.get(1, 0) + 1
    if fits_nodes(cluster, groups):
        check(cluster, plan)
    else:
        with pytest.raises(ResourceError):
            place(cluster, plan)


def test_training_takes_the_first_nodes_and_engines_the_last() -> None:
    plan = Plan(train=TrainLayout(tp=4, dp=3), rollout=RolloutLayout(engines=((8, 1), (2, 2))))
    placed = place(Cluster(num_gpus=24), plan)
    assert {group.node for group in placed if group.role == "train"} == {0, 1}
    assert next(group.node for group in placed if len(group.gpus) == 8) == 2


def test_colocated_sides_share_their_gpus() -> None:
    plan = Plan(train=TrainLayout(tp=4, dp=2), rollout=RolloutLayout(engines=((8, 1),)))
    placed = place(Cluster(num_gpus=8), plan, shared=True)
    assert sorted(gpu for group in placed for gpu in group.gpus) == sorted([*range(8), *range(8)])
