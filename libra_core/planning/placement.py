"""Where a plan's TP groups go: never over two nodes, training from the first node on, engines from the last one back.

Degrees are powers of two, so placing the larger groups first leaves every smaller group its place: only the sums per degree
decide whether a plan fits, whatever nodes are chosen.
"""

from collections import Counter

from libra_core.errors import ResourceError
from libra_core.planning.problem import Cluster
from libra_core.types.forecast import GpuGroup
from libra_core.types.plan import Plan, TrainLayout

TRAIN, ENGINE = "train", "engine"


def fits_nodes(cluster: Cluster, groups: dict[int, int]) -> bool:
    """Whether `{degree: number of groups}` fits without splitting a group."""
    taken = 0
    for size in sorted(groups, reverse=True):
        taken += size * groups[size]
        if taken > size * cluster.groups_of(size):
            return False
    return True


def most_engines(cluster: Cluster, train: TrainLayout | None, tp: int) -> int:
    """How many engines of degree `tp` fit beside the training groups (or alone)."""
    if train is None:
        return cluster.groups_of(tp)
    count = train.num_gpus // train.tp
    small, large = sorted((tp, train.tp))
    if train.num_gpus > train.tp * cluster.groups_of(train.tp):
        return 0
    free = min(cluster.groups_of(small) * small - train.num_gpus, cluster.groups_of(tp) * tp)
    if tp > train.tp:
        return max(free // tp, 0)
    return max((cluster.groups_of(tp) * tp - count * large) // tp, 0)


def place(cluster: Cluster, plan: Plan, *, shared: bool = False) -> tuple[GpuGroup, ...]:
    """Nodes and GPUs of every TP group; `shared`: both sides on the same GPUs. Raises `ResourceError` if they do not fit."""
    train = [(plan.train.tp, TRAIN, index) for index in range(plan.train.num_gpus // plan.train.tp)]
    engines = [(tp, ENGINE, index) for index, tp in enumerate(plan.rollout.degrees)]
    if shared:
        return _fill(cluster, train) + _fill(cluster, engines)
    return _fill(cluster, train + engines)


def _fill(cluster: Cluster, items: list[tuple[int, str, int]]) -> tuple[GpuGroup, ...]:
    low = [0] * len(cluster.node_sizes)
    high = list(cluster.node_sizes)
    placed: list[GpuGroup] = []
    for size, role, index in sorted(items, key=lambda item: (-item[0], item[1] == ENGINE, item[2])):
        nodes = range(len(high)) if role == TRAIN else range(len(high) - 1, -1, -1)
        node = next((node for node in nodes if high[node] - low[node] >= size), None)
        if node is None:
            sizes = Counter(item[0] for item in items)
            wanted = ", ".join(f"{count} of {tp}" for tp, count in sorted(sizes.items(), reverse=True))
            raise ResourceError(f"TP groups ({wanted}) do not fit {cluster.num_gpus} GPUs in nodes of {cluster.gpus_per_node}")
        if role == TRAIN:
            gpus = tuple(range(low[node], low[node] + size))
            low[node] += size
        else:
            gpus = tuple(range(high[node] - size, high[node]))
            high[node] -= size
        placed.append(GpuGroup(role=role, index=index, node=node, gpus=gpus))
    return tuple(placed)
