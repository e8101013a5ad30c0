"""Mixed candidates of the joint search: the exact partition on the best splits, judged with the router's errors."""

from collections.abc import Sequence

from libra_core.planning.candidates import Choice, SearchInputs, candidate_on, options_of
from libra_core.planning.confusion import ORACLE, RouterSkill
from libra_core.planning.mixed import MixedFleet, fleet_classes, interval_cost, planning_requests
from libra_core.planning.objective import MIXED, solve
from libra_core.planning.placement import fits_nodes
from libra_core.planning.rollout_partition import Partition, PartitionSolver
from libra_core.types.forecast import Candidate
from libra_core.types.plan import RolloutLayout

_NO_ROUTER = (
    "mixed fleets are not considered: no measured router says which trajectories it recognises (planner.router_accuracy and "
    "planner.router_tail_recall)"
)


def mixed_candidates(inputs: SearchInputs, splits: Sequence[Choice]) -> tuple[list[Candidate], tuple[str, ...]]:
    """The partition's fleet on each split's rollout GPUs, and what to say about mixed fleets."""
    problem = inputs.problem
    if problem.router is None:
        return [], (_NO_ROUTER,)
    degrees = tuple(tp for tp in inputs.curves if problem.sessions is None or not problem.sessions.against_degree(tp))
    if len(degrees) < 2 or not splits:
        return [], ()
    requests = planning_requests(problem.lengths, problem.regime)
    cost = interval_cost(problem.costs.engines, requests, problem.regime)
    solver = PartitionSolver(len(requests), degrees, cost)
    fleets: list[tuple[Candidate, Choice, Partition]] = []
    for split in splits:
        partition = solver.solve(problem.cluster.num_gpus - split.leaf.layout.num_gpus)
        if partition is not None and _is_mixed(partition) and _fits(inputs, split, partition):
            fleets.append((_judged(inputs, split, partition, problem.router), split, partition))
    if not fleets:
        return [], ("the exact partition on the best splits is a homogeneous fleet or does not fit the nodes",)
    best, split, partition = min(fleets, key=lambda item: item[0].forecast.t_iter_s)
    known = _judged(inputs, split, partition, ORACLE).forecast.t_iter_s
    note = (
        f"the best mixed fleet takes {best.forecast.t_iter_s:.1f} s with this router, {known:.1f} s with lengths known beforehand"
    )
    return [item for item, _, _ in fleets], (note,)


def _is_mixed(partition: Partition) -> bool:
    return len({share.tp for share in partition.shares}) > 1


def _counts(partition: Partition) -> dict[int, int]:
    degrees = sorted({share.tp for share in partition.shares})
    return {tp: sum(share.tp == tp for share in partition.shares) for tp in degrees}


def _fits(inputs: SearchInputs, split: Choice, partition: Partition) -> bool:
    layout, groups = split.leaf.layout, _counts(partition)
    groups[layout.tp] = groups.get(layout.tp, 0) + layout.num_gpus // layout.tp
    return fits_nodes(inputs.problem.cluster, groups)


def _judged(inputs: SearchInputs, split: Choice, partition: Partition, router: RouterSkill) -> Candidate:
    problem, regime = inputs.problem, inputs.problem.regime
    classes = fleet_classes(partition, problem.lengths, problem.costs.engines, regime, router)
    fleet = MixedFleet(classes=classes, batch_size=regime.batch, group_size=regime.group_size)
    rollout = RolloutLayout(engines=tuple(sorted(_counts(partition).items())))
    solution = solve(options_of([split]).mixed(), {MIXED: fleet}, regime)
    return candidate_on(inputs, split, rollout, [item.engine for item in classes], solution)
