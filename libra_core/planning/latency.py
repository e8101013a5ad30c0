"""One engine under a steady stream of trajectories: how long they take, and how many it can carry.

For `lam` trajectories a second and engine, Little's law gives the decode batch
`B = lam·g·a / (1 - lam·p - lam·g·(b + c·ctx))` and each trajectory the latency
`L_i = (s(B)·g_i + p_i)/(1 - lam·p) + tools_i` (docs/planner.md#what-is-minimised). The latency of every fleet of equal engines
depends on `lam` alone, so it is tabulated once a degree and interpolated for all splits, modes and iteration times.

Expected maxima are those of the whole weighted history (`Latencies`): a summary that keeps means loses the few hangs that the
slowest of a batch consists of.
"""

from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from libra_core.costs.api import EngineLaws
from libra_core.planning.lengths import LengthTable
from libra_core.planning.problem import Regime
from libra_core.types.laws import EngineLaw

Floats = NDArray[np.float64]

_LEAST_BATCH = 0.05
_LEAST_FREE_SHARE = 0.05
"""Prefill never takes more than the rest of an engine's time."""
_USABLE_KV = 0.93
"""Share of the KV cache beyond which running sequences are preempted (docs/measurements.md#engines-and-trainer-on-an-a800)."""
LANDED = (0.02, 0.2, 0.4, 0.6, 0.8)
"""Shares of a batch's groups at whose landing the trainer's backlog is looked at."""
_SLOT_PASSES = 3
"""Slots and the decode batch depend on each other, weakly."""
_GRID_BELOW = 28
_GRID_ABOVE = 8
_LEAST_S = 1e-6
_SORTED_ROWS = 2048
"""Histories of more rows are put into as many bins, by latency, instead of being sorted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedEngine:
    """One degree's law against one length table. Means are over trajectories."""

    tp: int
    law: EngineLaw
    generated: float
    context: float
    """Mean context of a decoding sequence."""
    prefill: Floats
    """`[n]` seconds of all prefills of a trajectory."""
    mean_prefill_s: float
    mean_tool_s: float
    slots: int
    """Trajectories that one engine holds when its share of the KV cache is promised, as `runtime.kv_ledger` promises it."""
    batch_limit: float
    """Decode batch in the closed loop when every slot is taken."""

    def step_s(self, batch: Floats) -> Floats:
        return self.law.a_s + self.per_sequence_s * batch

    @property
    def per_sequence_s(self) -> float:
        return self.law.b_s + self.law.c_s * self.context

    @property
    def work_s(self) -> float:
        """Engine seconds that one trajectory costs when every slot is taken."""
        step_s = self.law.a_s + self.per_sequence_s * self.batch_limit
        return self.generated * step_s / self.batch_limit + self.mean_prefill_s

    def batch(self, rate: Floats) -> Floats:
        """Decode batch at `rate` trajectories a second, between 1 and the closed loop's."""
        free = 1.0 - rate * (self.mean_prefill_s + self.generated * self.per_sequence_s)
        open_loop = np.where(free > 1e-3, rate * self.generated * self.law.a_s / np.maximum(free, 1e-3), np.inf)
        return np.minimum(np.maximum(open_loop, 1.0), max(self.batch_limit, 1.0))

    def rate_of_batch(self, batch: Floats) -> Floats:
        busy = self.mean_prefill_s + self.generated * self.per_sequence_s
        return batch / (self.generated * self.law.a_s + batch * busy)

    def stretch(self, rate: Floats) -> Floats:
        """How much the prefills of others slow a trajectory down."""
        return 1.0 / np.maximum(1.0 - rate * self.mean_prefill_s, _LEAST_FREE_SHARE)

    def latencies(self, rate: Floats, lengths: LengthTable) -> Floats:
        """`[rates, n]` seconds of each trajectory."""
        stretch = self.stretch(rate)[:, None]
        decode = self.step_s(self.batch(rate))[:, None] * lengths.generated_tokens[None, :]
        return stretch * (decode + self.prefill[None, :]) + lengths.tool_s[None, :]


@dataclass(frozen=True, slots=True, kw_only=True)
class Slowest:
    """Expected seconds of the slowest trajectory of a batch and of a group, and the group's spread; all arrays `[n]`."""

    of_batch: Floats
    of_group: Floats
    group_spread: Floats
    """Width W of the uniform law with the group's variance."""


class FleetModel(Protocol):
    """What answers a stream of trajectories. Every rate is in trajectories a second: of one engine where all are equal, of the
    whole fleet where they are not. All arrays `[n]`."""

    @property
    def work_s(self) -> float:
        """Seconds of the busiest engine for one trajectory of the stream, when every slot is taken."""
        ...

    def batch(self, rate: Floats) -> Floats:
        """Decode batch of an engine, in a mixed fleet of those of the longest trajectories."""
        ...

    def of_batch(self, rate: Floats) -> Floats:
        """Expected seconds of the slowest trajectory of a batch."""
        ...

    def slowest(self, met: Floats, mean: Floats) -> Slowest:
        """At the rates that the slowest trajectory of a batch and an average group meet."""
        ...

    def backlog_s(self, rate: Floats, work_s: Floats) -> Floats:
        """What `backlog_s` says of a batch whose trajectories arrive at `rate`."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class LatencyCurve:
    """A loaded engine with its expected maxima, piecewise linear in the arrival rate."""

    engine: LoadedEngine
    rate: Floats
    slowest_of_batch: Floats
    slowest_of_group: Floats
    spread_of_group: Floats
    """What `Largest.width` says of a group."""
    landed: Floats
    """`[rates, LANDED]` latencies within which so many of the groups are complete."""

    @property
    def work_s(self) -> float:
        return self.engine.work_s

    def batch(self, rate: Floats) -> Floats:
        return self.engine.batch(rate)

    def slowest(self, met: Floats, mean: Floats) -> Slowest:
        return Slowest(
            of_batch=self.of_batch(met),
            of_group=np.interp(mean, self.rate, self.slowest_of_group),
            group_spread=np.interp(mean, self.rate, self.spread_of_group),
        )

    def of_batch(self, rate: Floats) -> Floats:
        return np.interp(rate, self.rate, self.slowest_of_batch)

    def backlog_s(self, rate: Floats, work_s: Floats) -> Floats:
        landed = np.stack([np.interp(rate, self.rate, column) for column in self.landed.T], axis=-1)
        return backlog_s(work_s, self.of_batch(rate), landed)


def loaded_engine(laws: EngineLaws, tp: int, lengths: LengthTable, regime: Regime) -> LoadedEngine:
    """The caller has checked that the degree has a law."""
    law = laws[tp]
    context = lengths.mean_context
    prefill = (
        law.prefill_a_s * lengths.turns
        + law.prefill_b_s_per_token * lengths.prefill_tokens
        + law.prefill_c_s_per_token2 * lengths.prefill_pairs
    )
    most = max(min(float(regime.max_num_seqs), _USABLE_KV * law.kv_tokens / context), 1.0)
    engine = LoadedEngine(
        tp=tp,
        law=law,
        generated=lengths.mean(lengths.generated_tokens),
        context=context,
        prefill=prefill,
        mean_prefill_s=lengths.mean(prefill),
        mean_tool_s=lengths.mean(lengths.tool_s),
        slots=1,
        batch_limit=most,
    )
    cache = regime.kv_fill * law.kv_tokens
    for _ in range(_SLOT_PASSES):
        slots = max(1, min(int(cache / _promised(engine, lengths)) + 1, (regime.staleness + 1) * regime.batch))
        engine = replace(engine, slots=slots, batch_limit=_closed_loop_batch(replace(engine, slots=slots), most))
    return engine


def _promised(engine: LoadedEngine, lengths: LengthTable) -> float:
    """Context that the ledger promises to a trajectory on an engine, on average over those it finds there.

    It promises the mean of final contexts, or what a trajectory has when that is more, looked at before each turn. A trajectory
    is found there in proportion to its time there, so long ones count for more than their share.
    """
    total, prompt = lengths.total_tokens, lengths.prompt_tokens
    usual = lengths.mean(total)
    last = total - (total - prompt) / np.maximum(lengths.turns, 1.0)
    growth = np.maximum(last - prompt, 1e-9)
    beyond = np.clip((last - usual) / growth, 0.0, 1.0)
    promised = np.where(last > usual, (1 - beyond) * usual + beyond * (np.maximum(prompt, usual) + last) / 2, usual)
    batch = np.array(engine.batch_limit)
    stay_s = np.asarray(engine.step_s(batch)).item() * lengths.generated_tokens + engine.prefill + lengths.tool_s
    return lengths.mean(stay_s * promised) / lengths.mean(stay_s)


def latency_curve(engine: LoadedEngine, lengths: LengthTable, regime: Regime) -> LatencyCurve:
    """Tabulate the expected slowest of a batch and of a group over every arrival rate that can occur."""
    batches = np.geomspace(_LEAST_BATCH, max(engine.batch_limit, 2 * _LEAST_BATCH), _GRID_BELOW)
    below = engine.rate_of_batch(batches)
    saturated = (1.0 - _LEAST_FREE_SHARE) / max(engine.mean_prefill_s, 1e-9)
    above = np.geomspace(below[-1], max(saturated, below[-1] * 1.001), _GRID_ABOVE + 1)[1:]
    one = engine.rate_of_batch(np.array([1.0]))
    rate = np.unique(np.concatenate([[0.0], below, one, above]))
    spread = [Latencies.of(engine.latencies(rate[row : row + 1], lengths)[0], lengths.weight) for row in range(rate.size)]
    groups = [latencies.largest(regime.group_size) for latencies in spread]
    return LatencyCurve(
        engine=engine,
        rate=rate,
        slowest_of_batch=np.array([latencies.largest(regime.batch).mean for latencies in spread]),
        slowest_of_group=np.array([group.mean for group in groups]),
        spread_of_group=np.array([group.width for group in groups]),
        landed=np.stack([latencies.landed_s(regime.group_size) for latencies in spread]),
    )


def backlog_s(work_s: Floats, latest_s: Floats, landed_s: Floats) -> Floats:
    """What a trainer that takes groups as they land has left of a step's `work_s` when the last one lands; `[n]`.

    All groups start together, so most of them land late: `max over t of work·(1 - landed(t)) - (latest - t)`.
    """
    waiting = work_s[..., None] * (1.0 - np.array(LANDED)) - (latest_s[..., None] - landed_s)
    return np.maximum(waiting.max(axis=-1), 0.0)


@dataclass(frozen=True, slots=True)
class Largest:
    """The largest of so many draws: values `[n]` in order and the chance of each."""

    values: Floats
    chance: Floats

    @property
    def mean(self) -> float:
        return float(self.values @ self.chance)

    @property
    def width(self) -> float:
        """Of the uniform law with the same variance."""
        away = self.values - self.mean
        return float(np.sqrt(12.0 * max(float(away * away @ self.chance), 0.0)))


@dataclass(frozen=True, slots=True)
class Latencies:
    """A weighted history's latencies in order; every row is in it, however rare."""

    values: Floats
    beyond: Floats
    """Share of the values beyond each: a share of 1e-8 at the tail would be lost in the rounding of the share up to it."""

    @classmethod
    def of(cls, values: Floats, weight: Floats) -> "Latencies":
        """From values `[n]` with shares `[n]`.

        A long history is put into bins of equal ratio: over four decades, 0.5 % wide. Each has the mean of its own rows, so means
        are exact, and maxima off by a fraction of that.
        """
        if values.size > _SORTED_ROWS:
            return cls(*_binned(values, weight))
        order = np.argsort(values)
        return cls(values[order], _beyond(weight[order]))

    def largest(self, draws: int) -> Largest:
        # Order statistics: P(max > v) = 1 - (1 - q)^n with q the share beyond v. In this form a q of 1e-9 keeps its digits; 1 - q
        # would round it away, and with it the rare hangs of which the slowest of a batch consists.
        with np.errstate(divide="ignore"):  # before the first value, everything lies beyond
            exceeded = -np.expm1(draws * np.log1p(-self.beyond))
        return Largest(self.values, -np.diff(exceeded, prepend=1.0))

    def landed_s(self, group: int) -> Floats:
        """`[LANDED]` latencies within which so many groups are complete."""
        return self.values[np.searchsorted(1.0 - self.beyond, np.array(LANDED) ** (1.0 / group))]


def _binned(values: Floats, weight: Floats) -> tuple[Floats, Floats]:
    values = np.maximum(values, _LEAST_S)
    least, most = float(values.min()), float(values.max())
    scale = _SORTED_ROWS / max(np.log(most / least), 1e-9)
    bins = np.minimum((np.log(values / least) * scale).astype(np.intp), _SORTED_ROWS - 1)
    share: Floats = np.bincount(bins, weight).astype(np.float64)
    kept = share > 0
    return np.bincount(bins, weight * values)[kept] / share[kept], _beyond(share[kept])


def _beyond(weight: Floats) -> Floats:
    # Summed from the tail, small shares first, for the same digits.
    beyond = np.minimum(np.cumsum(weight[::-1])[::-1], 1.0)
    return np.append(beyond[1:], 0.0)


def _closed_loop_batch(engine: LoadedEngine, most: float) -> float:
    """The decode batch at which decoding, waiting for others' prefills and tools together take every slot."""
    low, high = _LEAST_BATCH, most
    for _ in range(50):
        batch = (low + high) / 2
        decode = engine.generated * (engine.law.a_s + engine.per_sequence_s * batch) + engine.mean_prefill_s * batch
        taken = batch * (decode + engine.mean_prefill_s + engine.mean_tool_s) / decode
        low, high = (low, batch) if taken > engine.slots else (batch, high)
    return low
