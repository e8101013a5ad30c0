"""A binary heap of (time, owner) in two arrays; equal times leave in the order of owners, so results do not depend on history."""

from libra_core.simulation.kernel.compiled import compiled
from libra_core.simulation.kernel.records import KernelState


@compiled
def push(s: KernelState, time_s: float, owner: int) -> None:
    place = s.run[0].tools
    s.run[0].tools += 1
    while place > 0:
        above = (place - 1) // 2
        if not _before(time_s, owner, s.tool_ends[above], s.tool_owners[above]):
            break
        s.tool_ends[place], s.tool_owners[place] = s.tool_ends[above], s.tool_owners[above]
        place = above
    s.tool_ends[place], s.tool_owners[place] = time_s, owner


@compiled
def pop(s: KernelState) -> int:
    first = s.tool_owners[0]
    s.run[0].tools -= 1
    size = s.run[0].tools
    time_s, owner = s.tool_ends[size], s.tool_owners[size]
    place = 0
    while True:
        child = 2 * place + 1
        if child >= size:
            break
        if child + 1 < size and _before(
            s.tool_ends[child + 1], s.tool_owners[child + 1], s.tool_ends[child], s.tool_owners[child]
        ):
            child += 1
        if not _before(s.tool_ends[child], s.tool_owners[child], time_s, owner):
            break
        s.tool_ends[place], s.tool_owners[place] = s.tool_ends[child], s.tool_owners[child]
        place = child
    s.tool_ends[place], s.tool_owners[place] = time_s, owner
    return first


@compiled
def _before(time_s: float, owner: int, other_s: float, other: int) -> bool:
    return time_s < other_s or (time_s == other_s and owner < other)
