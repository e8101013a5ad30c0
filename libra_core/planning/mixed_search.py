"""Mixed candidates of the joint search: the exact partition on the best splits, judged with the router's errors."""

from collections.abc import Sequence

from libra_core.planning.candidates import Bench, Choice, engine_bytes_per_gpu, options_of
from libra_core.planning.confusion import ORACLE, RouterSkill
from libra_core.planning.mixed import FleetClass, MixedSolution, fleet_classes, interval_cost, planning_requests, solve_mixed
from libra_core.planning.objective import paces
from libra_core.planning.placement import fits_nodes
from libra_core.planning.rollout_partition import Partition, PartitionSolver
from libra_core.types.forecast import Candidate, Forecast
from libra_core.types.plan import Plan, RolloutLayout

_NO_ROUTER = (
    "mixed fleets are not considered: no measured router says which trajectories it recognises (planner.router_accuracy and "
    "planner.router_tail_recall)"
)


def mixed_candidates(bench: Bench, splits: Sequence[Choice]) -> tuple[list[Candidate], tuple[str, ...]]:
    """The partition's fleet on each split's rollout GPUs, and what to say about mixed fleets."""
    problem = bench.problem
    if problem.router is None:
        return [], (_NO_ROUTER,)
    degrees = tuple(tp for tp in bench.curves if problem.sessions is None or not problem.sessions.against_degree(tp))
    if len(degrees) < 2 or not splits:
        return [], ()
    requests = planning_requests(problem.lengths, problem.regime)
    cost = interval_cost(problem.costs.engines, requests, problem.regime)
    solver = PartitionSolver(len(requests), degrees, cost)
    found: list[tuple[Candidate, Choice, Partition]] = []
    for split in splits:
        partition = solver.solve(problem.cluster.num_gpus - split.leaf.layout.num_gpus)
        if partition is not None and _is_mixed(partition) and _fits(bench, split, partition):
            found.append((_judged(bench, split, partition, problem.router), split, partition))
    if not found:
        return [], ("the exact partition on the best splits is a homogeneous fleet or does not fit the nodes",)
    best, split, partition = min(found, key=lambda item: item[0].forecast.t_iter_s)
    known = _judged(bench, split, partition, ORACLE).forecast.t_iter_s
    note = (
        f"the best mixed fleet takes {best.forecast.t_iter_s:.1f} s with this router, {known:.1f} s with lengths known beforehand"
    )
    return [item for item, _, _ in found], (note,)


def _is_mixed(partition: Partition) -> bool:
    return len({share.tp for share in partition.shares}) > 1


def _counts(partition: Partition) -> dict[int, int]:
    degrees = sorted({share.tp for share in partition.shares})
    return {tp: sum(share.tp == tp for share in partition.shares) for tp in degrees}


def _fits(bench: Bench, split: Choice, partition: Partition) -> bool:
    layout, groups = split.leaf.layout, _counts(partition)
    groups[layout.tp] = groups.get(layout.tp, 0) + layout.num_gpus // layout.tp
    return fits_nodes(bench.problem.cluster, groups)


def _judged(bench: Bench, split: Choice, partition: Partition, router: RouterSkill) -> Candidate:
    problem = bench.problem
    classes = fleet_classes(partition, problem.lengths, problem.costs.engines, problem.regime, router)
    pace = paces(options_of([split]), problem.regime)
    return _candidate(bench, split, classes, solve_mixed(classes, pace, problem.regime), _counts(partition))


def _candidate(
    bench: Bench, split: Choice, classes: Sequence[FleetClass], solution: MixedSolution, counts: dict[int, int]
) -> Candidate:
    regime, lengths = bench.problem.regime, bench.problem.lengths
    t_iter = solution.forecast_s
    forecast = Forecast(
        t_iter_s=t_iter,
        t_train_s=solution.train_s,
        t_rollout_s=solution.terms.fleet_s,
        slowest_trajectory_s=solution.latency_s,
        tokens_per_s=regime.batch * lengths.mean(lengths.generated_tokens) / t_iter,
        terms=solution.terms,
        publication_s=split.publication_s,
        engine_batch=solution.batch,
        train_bytes_per_gpu=split.leaf.bytes_per_gpu,
        rollout_bytes_per_gpu=max(engine_bytes_per_gpu(bench, item.engine) for item in classes),
    )
    return Candidate(
        mode=split.mode,
        streamed=split.streamed,
        plan=Plan(train=split.leaf.layout, rollout=RolloutLayout(engines=tuple(sorted(counts.items())))),
        slots_per_engine=tuple(sorted((item.tp, item.engine.slots) for item in classes)),
        forecast=forecast,
    )
