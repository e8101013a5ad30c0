"""What an engine and a trainer take: values that kernels, calibration, a run's own measurements and the simulated truth produce.

A correction is a number: `scaled`. An engine's law is a row of a table by degree. A trainer's is a function of layout and load,
since no layout's sum of kernels is linear in what it trains.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from libra_core.costs.facts import Fit
from libra_core.costs.layouts import TrainingLoad, TrainingShape
from libra_core.costs.memory import TrainMemory
from libra_core.errors import ConfigError
from libra_core.types.laws import EngineLaw


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineLaws:
    """Engines of one model by degree; a degree without a law cannot serve."""

    of: Mapping[int, EngineLaw]
    against: Mapping[int, str] = field(default_factory=dict[int, str])
    """Why a degree that was asked for has no law."""

    def __getitem__(self, tp: int) -> EngineLaw:
        """Raises `ConfigError` with the reason when there is none."""
        if tp not in self.of:
            raise ConfigError(self.why_not(tp))
        return self.of[tp]

    def why_not(self, tp: int) -> str:
        """Empty for a degree that has a law."""
        if tp in self.of:
            return ""
        known = ", ".join(str(degree) for degree in sorted(self.of)) or "none"
        return self.against.get(tp, f"engines of tp {tp} have no law; known are those of tp {known}")

    def mapped(self, change: Callable[[int, EngineLaw], EngineLaw]) -> "EngineLaws":
        """Each law changed, given its degree."""
        return replace(self, of={tp: change(tp, law) for tp, law in self.of.items()})

    def scaled(self, decode: float, prefill: float | None = None) -> "EngineLaws":
        """Every engine `decode` times as slow, `prefill` times in its prefills."""
        return self.mapped(lambda _tp, law: law.scaled(decode, prefill))


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainTimeParts:
    """Seconds of one step on the critical path."""

    forward_backward_s: float
    """Compute of all micro-batches of the largest stage, recomputation included."""
    tp_communication_s: float = 0.0
    ep_communication_s: float = 0.0
    bubble_s: float = 0.0
    pp_transfer_s: float = 0.0
    dp_exposed_s: float = 0.0
    optimizer_s: float = 0.0
    logprob_s: float = 0.0
    """Forward pass for old log-probs; 0 when the sampler's are used."""

    @property
    def total_s(self) -> float:
        return (
            self.forward_backward_s
            + self.tp_communication_s
            + self.ep_communication_s
            + self.bubble_s
            + self.pp_transfer_s
            + self.dp_exposed_s
            + self.optimizer_s
            + self.logprob_s
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainEstimate:
    """What one step of a layout costs."""

    t_train_s: float
    parts: TrainTimeParts
    memory: TrainMemory
    num_micro_batches: int
    """Per pipeline."""
    bubble_share: float
    """(pp-1)/(m+pp-1)."""
    tp_share: float
    """Share of `t_train_s` that tp collectives take."""
    fit: Fit
    """Divisibility, topology and memory. An infeasible layout never carries a finite time that a planner could rank."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainerLaw:
    """A trainer of one model: which layouts are possible, and what a step of one costs."""

    shape_fit: Callable[[TrainingShape], Fit]
    """Divisibility and topology alone; the reason is a sentence."""
    evaluate: Callable[[TrainingShape, TrainingLoad], TrainEstimate]
    factor: float = 1.0
    """Of every step's time; its parts stay as evaluated, since comparisons with measurements are of whole steps."""
    source: Callable[[TrainingShape], str] = lambda _shape: ""
    """Where a layout's time comes from, for people."""

    def estimate(self, shape: TrainingShape, load: TrainingLoad) -> TrainEstimate:
        """Time and memory of one step; `t_train_s` is infinite when the layout is impossible."""
        predicted = self.evaluate(shape, load)
        return predicted if self.factor == 1.0 else replace(predicted, t_train_s=predicted.t_train_s * self.factor)

    def scaled(self, factor: float) -> "TrainerLaw":
        """The same trainer, `factor` times as slow."""
        return replace(self, factor=self.factor * factor)
