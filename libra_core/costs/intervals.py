"""Makespan of sorted requests first..last on one engine in O(1), by prefix sums (docs/costs.md#formulas).

For requests that start together, sorted by generated length g with prompts p and tool tokens r:

`makespan = a·steps + b·Σ g + c·Σ (p·g + r·g/2 + g²/2) + prefill + slowest tools`

`steps` is the longest g when all fit at once. Otherwise the engine works in a list schedule (Graham's bound): at least
Σg/B + (1-1/B)·g_max steps under a limit of B sequences, and Σ(final context·g)/C + (1-context/C)·g_max under C tokens of promised
KV cache, where `context` is that of the longest request. Every term is a sum or a maximum over the interval, so the makespan
never falls when a request is added.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from libra_core.costs.curves import Array
from libra_core.types.laws import EngineLaw

IntArray = NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineLimits:
    """What caps the concurrency of one engine."""

    kv_tokens: float
    """Tokens that may be promised: capacity times `rollout.kv_fill`."""
    max_num_seqs: int
    kv_capacity: float | None = None
    """Tokens one request may hold alone; `kv_tokens` when unset."""


class RequestTable:
    """Requests sorted by generated tokens, with prefix sums over all that an interval needs."""

    generated_tokens: Array
    """`[n]`, ascending."""
    order: IntArray
    """`[n]`: position in the input of the i-th sorted request."""

    def __init__(
        self,
        prompt_tokens: Sequence[float] | Array,
        generated_tokens: Sequence[float] | Array,
        tool_tokens: Sequence[float] | Array | None = None,
        tool_s: Sequence[float] | Array | None = None,
        turns: Sequence[float] | Array | None = None,
    ) -> None:
        """Arrays `[n]` in any order, one entry a trajectory: tokens of the prompt, of all generated turns, of all tool returns,
        seconds in tools, number of turns (default 1)."""
        generated = np.asarray(generated_tokens, np.float64)
        self.order = np.argsort(generated, kind="stable").astype(np.int64)
        self.generated_tokens = generated[self.order]
        prompt, tool = self._sorted(prompt_tokens, 0.0), self._sorted(tool_tokens, 0.0)
        rounds = np.maximum(self._sorted(turns, 1.0), 1.0)
        g = self.generated_tokens
        self._context = prompt + g + tool
        self._tools = _RangeMaximum(self._sorted(tool_s, 0.0))
        self._largest = _RangeMaximum(self._context)
        self._tokens = _prefix(g)
        self._read = _prefix(prompt * g + tool * g / 2 + g * g / 2)
        self._held = _prefix(self._context * g)
        self._contexts = _prefix(self._context)
        self._passes = _prefix(rounds)
        self._filled = _prefix(prompt + tool)
        self._pairs = _prefix(prompt**2 / 2 + tool * (prompt + (g + tool) / 2))

    def __len__(self) -> int:
        return len(self.generated_tokens)

    def makespan_s(self, first: int, last: int, law: EngineLaw, limits: EngineLimits) -> float:
        """Seconds for requests first..last (inclusive, sorted order) started together on one engine.

        Infinite when one of them exceeds the KV cache alone. Never falls when `last` grows or `first` shrinks.
        """
        return float(self.makespans_s(np.array([first]), np.array([last]), law, limits)[0])

    def makespans_s(self, first: IntArray, last: IntArray, law: EngineLaw, limits: EngineLimits) -> Array:
        """`makespan_s` for arrays of intervals `[m]`."""
        first, stop = np.asarray(first, np.int64), np.asarray(last, np.int64) + 1
        largest = self._largest.over(first, stop)
        total = law.a_s * self._steps(first, stop, limits)
        total = total + law.b_s * _between(self._tokens, first, stop)
        total = total + law.c_s * _between(self._read, first, stop)
        total = total + law.prefill_a_s * _between(self._passes, first, stop)
        total = total + law.prefill_b_s_per_token * _between(self._filled, first, stop)
        total = total + law.prefill_c_s_per_token2 * _between(self._pairs, first, stop)
        total = total + self._tools.over(first, stop)
        alone = limits.kv_tokens if limits.kv_capacity is None else limits.kv_capacity
        return np.where(largest <= alone, total, np.inf)

    def _steps(self, first: IntArray, stop: IntArray, limits: EngineLimits) -> Array:
        longest = self.generated_tokens[stop - 1]
        seats, room = float(limits.max_num_seqs), max(limits.kv_tokens, 1.0)
        by_seats = _between(self._tokens, first, stop) / seats + (1 - 1 / seats) * longest
        own_share = np.minimum(1.0, self._context[stop - 1] / room)
        by_memory = _between(self._held, first, stop) / room + (1 - own_share) * longest
        fit_seats = stop - first <= limits.max_num_seqs
        fit_memory = (_between(self._contexts, first, stop) <= room) | (stop - first == 1)
        steps = np.maximum(np.where(fit_seats, longest, by_seats), np.where(fit_memory, longest, by_memory))
        return np.maximum(steps, longest)

    def _sorted(self, values: Sequence[float] | Array | None, default: float) -> Array:
        if values is None:
            return np.full(len(self.order), default)
        return np.asarray(values, np.float64)[self.order]


class _RangeMaximum:
    """Sparse table: maximum of any range in O(1) after O(n log n)."""

    def __init__(self, values: Array) -> None:
        self._levels = [values]
        width = 1
        while 2 * width <= len(values):
            below = self._levels[-1]
            self._levels.append(np.maximum(below[:-width], below[width:]))
            width *= 2
        size = len(values)
        self._table = np.stack([np.pad(level, (0, size - len(level)), constant_values=-np.inf) for level in self._levels])

    def over(self, first: IntArray, stop: IntArray) -> Array:
        level = np.frexp((stop - first).astype(np.float64))[1] - 1
        return np.maximum(self._table[level, first], self._table[level, stop - (1 << level)])


def _prefix(values: Array) -> Array:
    return np.concatenate([[0.0], np.cumsum(values)])


def _between(prefix: Array, first: IntArray, stop: IntArray) -> Array:
    return prefix[stop] - prefix[first]
