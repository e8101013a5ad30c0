"""What the prefix tree may keep and how fast it forgets."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class TreeSettings:
    """Fixed for the life of a tree; two trees merge only with equal settings."""

    half_life: float | None = 8192.0
    """Finished trajectories after which one counts half. None: nothing is forgotten."""
    max_nodes: int = 400_000
    """Beyond it the nodes of least value are evicted."""
    payload_limits: tuple[int, ...] = (100, 1000, 10_000)
    """Borders of the payload classes in tokens; an empty payload is a class of its own."""
    shrinkage: float = 4.0
    """Visits at which a state counts as much as the coarser states above it together."""
