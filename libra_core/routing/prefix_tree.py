"""Causal prefix tree: what is left to generate, given the prompt and the ordered tool returns so far (DESIGN section 6)."""

from pathlib import Path

from libra_core.ports.routing import FinishedTrajectory
from libra_core.routing.residual import Residual
from libra_core.routing.tree_settings import TreeSettings
from libra_core.types.ids import PromptId
from libra_core.types.trajectory import ToolOutcome


class Cursor:
    """Place of one live trajectory in the tree; a decision then costs one step, not a walk."""


class PrefixTree:
    """Stub: the interface is fixed, the body follows."""

    def __init__(self, settings: TreeSettings | None = None) -> None:
        self.settings = settings or TreeSettings()

    def start(self, prompt_id: PromptId) -> Cursor:
        """State of a trajectory before its first turn."""
        raise NotImplementedError

    def advance(self, cursor: Cursor, outcome: ToolOutcome, generated_tokens: int) -> None:
        """One more tool return, after `generated_tokens` in all."""
        raise NotImplementedError

    def predict(self, cursor: Cursor) -> Residual:
        """Remaining generated tokens from that state on."""
        raise NotImplementedError

    def learn(self, finished: FinishedTrajectory) -> None:
        raise NotImplementedError

    def merge(self, other: "PrefixTree") -> None:
        """Add what another tree of the same settings has seen."""
        raise NotImplementedError

    def save(self, path: Path) -> None:
        """Atomic; the previous file is kept beside it as `<name>.previous`."""
        raise NotImplementedError


def load_tree(path: Path, settings: TreeSettings | None = None) -> PrefixTree:
    """Raises `CheckpointError` with a sentence for a damaged file; the previous one is left in place."""
    raise NotImplementedError
