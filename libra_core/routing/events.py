"""Tool returns as the tree tells them apart: tool, status as the tool runner states it, payload class in tokens."""

import bisect

from libra_core.routing.tree_settings import TreeSettings
from libra_core.types.trajectory import ToolOutcome

OTHER = 0
"""Label of every kind beyond the bound."""
EventKind = tuple[str, str, int]


class EventLabels:
    """Small integers for kinds of tool returns, in order of their first appearance; bounded."""

    def __init__(self, settings: TreeSettings) -> None:
        self._limits = settings.payload_limits
        self._most = settings.max_events
        self._labels: dict[EventKind, int] = {}

    def label(self, outcome: ToolOutcome) -> int:
        tokens = outcome.payload_tokens
        kind = (outcome.tool, str(outcome.status), bisect.bisect_left(self._limits, tokens) + 1 if tokens else 0)
        return self._labels.get(kind) or self.of_kind(kind)

    def of_kind(self, kind: EventKind) -> int:
        """`OTHER` once as many kinds as allowed are known."""
        known = self._labels.get(kind)
        if known is not None:
            return known
        if len(self._labels) >= self._most:
            return OTHER
        self._labels[kind] = len(self._labels) + 1
        return len(self._labels)

    def kinds(self) -> list[EventKind]:
        """Kind of label 1, 2, ..."""
        return list(self._labels)
