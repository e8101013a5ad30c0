"""Causal prefix tree: what is left to generate, given the prompt and the ordered tool returns so far (docs/routing.md).

Two trees of one shape share a table: one over all prompts, and one per prompt. Below each root hang the states by number of
finished turns, below those the states by turn and last tool return, and below the first turn the states by all tool returns in
order. `blending` makes one distribution of the states that describe a trajectory.

Forgetting is by forward decay (Cormode et al., 2009): a later trajectory weighs more, `2^(i / half_life)`, and only the ratios of
weights matter, so nothing has to be touched when time passes.
"""

import math

import numpy as np

from libra_core.errors import ConfigError
from libra_core.ports.routing import FinishedTrajectory
from libra_core.routing.agreement import PRIOR_RATIO, PromptAgreement
from libra_core.routing.blending import blend_states
from libra_core.routing.events import EventLabels
from libra_core.routing.node_table import LABEL_BITS, TOKENS, WEIGHT, NodeTable
from libra_core.routing.residual import Residual
from libra_core.routing.sketch import BINS, CENTRES, bin_of
from libra_core.routing.tree_settings import TreeSettings
from libra_core.types.ids import PromptId
from libra_core.types.trajectory import ToolOutcome

PRIOR, ROOT = 0, 1
"""Node of ignorance (uniform over the bins), and the root of the tree over all prompts."""
_TURN = 8192
"""Label of turn 0; labels of tool returns are below it."""
_EXACT_TURNS = 24
_PRIOR_VISITS = 1.0
_HEAVIEST_UNIT = 2.0**20
_KEPT_SHARE = 0.75


def turn_label(turns: int) -> int:
    """Turns are told apart singly up to 24, then by quarter octaves, so that their number stays bounded."""
    if turns < _EXACT_TURNS:
        return _TURN + turns
    return _TURN + _EXACT_TURNS + int(4 * math.log2(turns / _EXACT_TURNS))


class Cursor:
    """Place of one live trajectory in the tree; a decision then costs one step, not a walk."""

    __slots__ = ("depths", "epoch", "labels", "paths", "prompt_id")

    def __init__(self, prompt_id: PromptId) -> None:
        self.prompt_id = prompt_id
        self.labels: list[int] = []
        """Of the tool returns so far."""
        self.reset(-1)

    def reset(self, epoch: int) -> None:
        """Nodes have new ids: begin again at the roots."""
        self.epoch = epoch
        self.paths = [-1, -1]
        """Deepest known state by all tool returns, in the tree of all prompts and in the prompt's own."""
        self.depths = [0, 0]
        """Tool returns that lead to it."""


class PrefixTree:
    """Bounded in nodes, kinds of tool returns and turns told apart. Not safe for several threads."""

    def __init__(self, settings: TreeSettings | None = None) -> None:
        self.settings = settings or TreeSettings()
        self.events = EventLabels(self.settings)
        self.table = NodeTable()
        self.roots: dict[PromptId, int] = {}
        self.agreement = PromptAgreement()
        self.learnt = 0
        """Finished trajectories seen so far, merged ones included."""
        self.unit = 1.0
        """Weight of the next trajectory."""
        self._epoch = 0
        self._shrinkage = (self.settings.global_shrinkage, self.settings.prompt_shrinkage[1:])
        self._growth = 1.0 if self.settings.half_life is None else 2.0 ** (1.0 / self.settings.half_life)
        assert self.table.add_root() == PRIOR
        assert self.table.add_root() == ROOT
        self.table.rows[PRIOR, :BINS] = 1.0 / BINS
        self.table.rows[PRIOR, TOKENS] = sum(CENTRES) / BINS
        self.table.rows[PRIOR, WEIGHT] = 1.0

    def start(self, prompt_id: PromptId) -> Cursor:
        """State of a trajectory before its first turn."""
        return Cursor(prompt_id)

    def advance(self, cursor: Cursor, outcome: ToolOutcome) -> None:
        """One more tool return."""
        cursor.labels.append(self.events.label(outcome))

    def predict(self, cursor: Cursor) -> Residual:
        """Remaining generated tokens from that state on."""
        if cursor.epoch != self._epoch:
            cursor.reset(self._epoch)
        ids, visits = [PRIOR, ROOT], [0.0, _PRIOR_VISITS]
        own_from = len(self._collect(cursor, 0, ROOT, ids, visits))
        root = self.roots.get(cursor.prompt_id)
        if root is not None:
            ids.append(root)
            visits.append(self.settings.prompt_shrinkage[0])
            self._collect(cursor, 1, root, ids, visits)
        rows = self.table.rows.take(ids, 0)
        unit = self.unit
        shares, mean, weights = blend_states(rows, visits, own_from, (unit, unit * self.agreement.ratio / PRIOR_RATIO))
        return Residual(shares, mean, weights[1] / unit, 0.0 if root is None else weights[own_from] / unit)

    def learn(self, finished: FinishedTrajectory) -> None:
        """One visit of every state that the trajectory went through; evicts when the table is full."""
        left = finished.generated_tokens
        turns = min(len(finished.turn_tokens), len(finished.tool_returns) + 1)
        if turns == 0:
            return
        bins: list[int] = []
        remaining: list[int] = []
        for tokens in finished.turn_tokens[:turns]:
            bins.append(bin_of(left))
            remaining.append(left)
            left -= tokens
        label = self.events.label
        labels = [label(outcome) for outcome in finished.tool_returns[: turns - 1]]
        own = self.roots.get(finished.prompt_id)
        self.agreement.learn(finished.generated_tokens, None if own is None else self._mean_of(own))
        if own is None:
            own = self.roots[finished.prompt_id] = self.table.add_root()
        ids, turn_of = [ROOT] * turns + [own] * turns, [*range(turns), *range(turns)]
        self._visit(ROOT, labels, ids, turn_of)
        self._visit(own, labels, ids, turn_of)
        at = np.array(turn_of)
        weights = np.full(len(ids), self.unit)
        weights[: 2 * turns] = self.unit / turns
        self.table.add(ids, np.array(bins)[at], np.array(remaining, np.float64)[at], weights)
        self._pass_time()

    def merge(self, other: "PrefixTree") -> None:
        """Add what another tree has seen; both count as equally recent.

        Raises:
            ConfigError: the trees tell different states apart.
        """
        if other.settings != self.settings:
            raise ConfigError(f"prefix trees of different settings do not merge: {self.settings} and {other.settings}")
        relabelled = [0, *(self.events.of_kind(kind) for kind in other.events.kinds())]
        prompts = {node: prompt for prompt, node in other.roots.items()}
        mask, ids = (1 << LABEL_BITS) - 1, [PRIOR, ROOT]
        for node, key in enumerate(other.table.keys):
            if node <= ROOT:
                continue
            if key < 0:
                ids.append(self.roots.setdefault(prompts[node], len(self.table)))
                if ids[-1] == len(self.table):
                    self.table.add_root()
                continue
            label = key & mask
            ids.append(self.table.child(ids[key >> LABEL_BITS], label if label >= _TURN else relabelled[label]))
        self.table.add_rows(ids[ROOT:], other.table.rows[ROOT : len(other.table)] * (self.unit / other.unit))
        self.learnt += other.learnt
        self.agreement.merge(other.agreement)
        self._evict_if_full()

    def _collect(self, cursor: Cursor, which: int, root: int, ids: list[int], visits: list[float]) -> list[int]:
        """Append the known states of one tree that describe the cursor's place, coarse to fine; returns `ids`."""
        children, labels = self.table.children, cursor.labels
        shrinkage = self._shrinkage[which]
        turns = len(labels)
        turn = children.get(root << LABEL_BITS | turn_label(turns))
        if turn is None:
            return ids
        ids.append(turn)
        visits.append(shrinkage[0])
        if turns == 0:
            return ids
        last = children.get(turn << LABEL_BITS | labels[-1])
        if last is None:
            return ids
        ids.append(last)
        visits.append(shrinkage[1])
        path = self._follow(cursor, which, root)
        if path is not None:
            ids.append(path)
            visits.append(shrinkage[2])
        return ids

    def _follow(self, cursor: Cursor, which: int, root: int) -> int | None:
        """The state by all tool returns, if it is known; states that siblings have added meanwhile are found too."""
        children, labels = self.table.children, cursor.labels
        path, depth = cursor.paths[which], cursor.depths[which]
        if path < 0:
            start = children.get(root << LABEL_BITS | _TURN)
            if start is None:
                return None
            path = start
        while depth < len(labels):
            deeper = children.get(path << LABEL_BITS | labels[depth])
            if deeper is None:
                break
            path, depth = deeper, depth + 1
        cursor.paths[which], cursor.depths[which] = path, depth
        return path if depth == len(labels) else None

    def _visit(self, root: int, labels: list[int], ids: list[int], turn_of: list[int]) -> None:
        """Append the nodes that one trajectory visits in one tree, and the turn each of them belongs to; missing ones are made.

        Of the states by all tool returns at most one is made per visit, so that paths nobody takes again stay short.
        """
        child, known = self.table.child, self.table.children.get
        path: int | None = child(root, _TURN)
        ids.append(path)
        turn_of.append(0)
        growing = True
        first = root << LABEL_BITS
        for turn, label in enumerate(labels, 1):
            of_turn = turn_label(turn)
            state = known(first | of_turn)
            if state is None:
                state = child(root, of_turn)
            last = known(state << LABEL_BITS | label)
            if last is None:
                last = child(state, label)
            if path is not None:
                deeper = known(path << LABEL_BITS | label)
                if deeper is None and growing:
                    deeper, growing = child(path, label), False
                path = deeper
            if path is None:
                ids += (state, last)
                turn_of += (turn, turn)
            else:
                ids += (state, last, path)
                turn_of += (turn, turn, turn)

    def _mean_of(self, node: int) -> float | None:
        weight = float(self.table.rows[node, WEIGHT])
        return float(self.table.rows[node, TOKENS]) / weight if weight > 0 else None

    def _pass_time(self) -> None:
        self.learnt += 1
        self.unit *= self._growth
        if self.unit > _HEAVIEST_UNIT:
            self.rebase()
        self._evict_if_full()

    def rebase(self) -> None:
        """Give the next trajectory weight 1 again; predictions do not change."""
        prior = self.table.rows[PRIOR].copy()
        self.table.scale(1.0 / self.unit)
        self.table.rows[PRIOR] = prior
        self.unit = 1.0

    def _evict_if_full(self) -> None:
        if len(self.table) <= self.settings.max_nodes:
            return
        fresh = self.table.keep_heaviest(int(_KEPT_SHARE * self.settings.max_nodes), (PRIOR, ROOT))
        self.roots = {prompt: int(fresh[node]) for prompt, node in self.roots.items() if fresh[node] >= 0}
        self._epoch += 1
