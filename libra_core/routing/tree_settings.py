"""What the prefix tree may keep and how fast it forgets."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from libra_core.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class TreeSettings:
    """Fixed for the life of a tree; two trees merge only with equal settings."""

    half_life: float | None = 8192.0
    """Finished trajectories after which one counts half. None: nothing is forgotten."""
    max_nodes: int = 400_000
    """Beyond it the nodes of least evidence go. A node takes about 400 bytes."""
    max_events: int = 4000
    """Kinds of tool returns told apart (tool, status, payload class); later kinds share one."""
    payload_limits: tuple[int, ...] = (100, 1000, 10_000)
    """Borders of the payload classes in tokens; an empty payload is a class of its own."""
    global_shrinkage: tuple[float, float, float] = (4.0, 8.0, 16.0)
    """Visits at which a state of all prompts counts as much as the coarser ones together: by turn, by turn and last tool
    return, by all tool returns."""
    prompt_shrinkage: tuple[float, float, float, float] = (2.5, 2.5, 1.5, 1.5)
    """The same of a prompt's own states, at any turn, then as above, before `PromptAgreement` has learnt how far samples of a
    prompt agree; it then scales them. Low, since prompts differ more than their samples do, but
    such that a single visit decides nothing (its share is 0.49)."""

    def __post_init__(self) -> None:
        if self.half_life is not None and self.half_life <= 0:
            raise ConfigError(f"the half-life is {self.half_life:g} trajectories; give a positive number, or none to keep all")
        if self.max_nodes < 16:
            raise ConfigError(f"a prefix tree of at most {self.max_nodes} nodes holds nothing; allow at least 16")
        if list(self.payload_limits) != sorted(set(self.payload_limits)):
            raise ConfigError(f"payload limits must ascend; they are {list(self.payload_limits)}")

    def facts(self) -> dict[str, object]:
        """As JSON holds them."""
        return {name: list(value) if isinstance(value, tuple) else value for name, value in asdict(self).items()}


def settings_of(facts: Mapping[str, Any]) -> TreeSettings:
    """The opposite of `facts`."""
    plain: dict[str, Any] = dict(facts)
    for name in [name for name, value in plain.items() if isinstance(value, list)]:
        plain[name] = tuple(plain[name])
    return TreeSettings(**plain)
