"""T_train and T_rollout of the next iteration of a run, from the batches before it; and how far such forecasts were off.

Known before an iteration: recency-weighted counters of the batches before it. A batch is known by its sums and its longest
trajectory, so the fleet's law sees equal trajectories and one long one, dealt evenly over the engines and started together.
Not in the laws: prefix caching, the export of weights, orchestration, other work on the host. The error shows them; nothing is
corrected.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import numpy as np

from libra_core.costs.api import EngineLimits, RequestTable, TrainerLaw, TrainingLoad, TrainingShape
from libra_core.errors import CheckpointError
from libra_core.types.forecast import ForecastCheck, StepForecast
from libra_core.types.laws import EngineLaw
from libra_core.types.reports import IterationReport, RolloutReport, UpdateReport


@dataclass(frozen=True, slots=True, kw_only=True)
class RunLaws:
    """Of the active plan; no engines or no trainer where no law is known."""

    engines: tuple[tuple[EngineLaw, EngineLimits], ...] = ()
    """One entry a degree."""
    num_engines: int = 0
    trainer: TrainerLaw | None = None
    shape: TrainingShape = field(default_factory=TrainingShape)
    grounding: tuple[str, ...] = ()
    """Sentences on where the laws come from."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GeneratedBatch:
    """Expected counters of one batch, summed over its trajectories unless named."""

    trajectories: float
    prompt_tokens: float
    generated_tokens: float
    tool_tokens: float
    turns: float
    longest_generated_tokens: float
    longest_tool_s: float

    @classmethod
    def of(cls, report: RolloutReport) -> "GeneratedBatch":
        return cls(
            trajectories=report.trajectories,
            prompt_tokens=report.prompt_tokens,
            generated_tokens=report.generated_tokens,
            tool_tokens=report.tool_tokens,
            turns=report.mean_turns * report.trajectories,
            longest_generated_tokens=report.longest_generated_tokens,
            longest_tool_s=report.longest_tool_s,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainedBatch:
    """Expected counters of one optimizer step; groups without learning signal are not in it."""

    sequences: float
    tokens: float
    squared_tokens: float
    longest_tokens: float
    micro_batches: float

    @classmethod
    def of(cls, rollout: RolloutReport, update: UpdateReport) -> "TrainedBatch":
        """The trained part is taken to have the lengths of the whole batch."""
        share = update.tokens / max(1, rollout.prompt_tokens + rollout.generated_tokens + rollout.tool_tokens)
        return cls(
            sequences=share * rollout.trajectories,
            tokens=update.tokens,
            squared_tokens=share * rollout.squared_tokens,
            longest_tokens=rollout.longest_tokens,
            micro_batches=update.micro_batches,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class RecentMean:
    """Mean of named values in which each is worth `decay` times the one after it."""

    total: Mapping[str, float] = field(default_factory=dict[str, float])
    weight: float = 0.0

    def including(self, values: Mapping[str, float], decay: float) -> "RecentMean":
        total = {name: decay * self.total.get(name, 0.0) + value for name, value in values.items()}
        return RecentMean(total=total, weight=decay * self.weight + 1.0)

    @property
    def mean(self) -> dict[str, float]:
        """Empty before the first value."""
        return {name: value / self.weight for name, value in self.total.items()}

    @classmethod
    def read(cls, saved: Any, names: Sequence[str]) -> "RecentMean":
        """From `asdict`. Raises `ValueError` when that is not what is given."""
        if not isinstance(saved, dict) or set(saved) != {"total", "weight"} or not isinstance(saved["total"], dict):
            raise ValueError("a mean is not made of total and weight")
        total: dict[Any, Any] = saved["total"]
        result = cls(total={str(name): float(value) for name, value in total.items()}, weight=float(saved["weight"]))
        if set(result.total) != (set(names) if result.weight > 0 else set()):
            raise ValueError(f"a mean of weight {result.weight:g} holds {', '.join(result.total) or 'nothing'}")
        if not all(math.isfinite(value) and value >= 0 for value in (*result.total.values(), result.weight)):
            raise ValueError("a mean holds a value that is negative or not finite")
        return result


def forecast_rollout_s(laws: RunLaws, batch: GeneratedBatch) -> float:
    """Until the slowest engine has finished its even share of the batch; infinite when a trajectory exceeds its KV cache."""
    count = max(1, math.ceil(batch.trajectories / laws.num_engines))
    each = 1.0 / max(batch.trajectories, 1.0)
    longest = batch.longest_generated_tokens
    others = (batch.generated_tokens * each * count - longest) / (count - 1) if count > 1 else longest
    generated = np.full(count, min(max(others, 0.0), longest))
    generated[-1] = longest
    tool_s = np.zeros(count)
    tool_s[-1] = batch.longest_tool_s
    table = RequestTable(
        np.full(count, batch.prompt_tokens * each),
        generated,
        np.full(count, batch.tool_tokens * each),
        tool_s,
        np.full(count, batch.turns * each),
    )
    return max(table.makespan_s(0, count - 1, law, limits) for law, limits in laws.engines)


def forecast_train_s(law: TrainerLaw, shape: TrainingShape, batch: TrainedBatch) -> float:
    """One step with micro-batches as full as they were: a streamed step packs each share of groups for itself."""
    filled = math.ceil(batch.tokens / max(batch.micro_batches, 1.0))
    load = TrainingLoad(
        num_sequences=max(1, round(batch.sequences)),
        tokens=batch.tokens,
        squared_tokens=batch.squared_tokens,
        longest_tokens=batch.longest_tokens,
    )
    return law.estimate(replace(shape, micro_batch_tokens=max(1, filled)), load).parts.total_s


@dataclass(frozen=True, slots=True, kw_only=True)
class ForecastHistory:
    """What a forecaster has learnt, in every checkpoint: four weighted sums, however long the run was."""

    generated: RecentMean = field(default_factory=RecentMean)
    """Of `GeneratedBatch`."""
    trained: RecentMean = field(default_factory=RecentMean)
    """Of `TrainedBatch`."""
    train_error: RecentMean = field(default_factory=RecentMean)
    rollout_error: RecentMean = field(default_factory=RecentMean)

    def to_json(self) -> dict[str, object]:
        return asdict(self)

    @classmethod
    def from_json(cls, saved: Any) -> "ForecastHistory":
        """Raises `CheckpointError` for anything but what `to_json` gave."""
        values = (tuple(GeneratedBatch.__slots__), tuple(TrainedBatch.__slots__), ("error",), ("error",))
        try:
            return cls(**{name: RecentMean.read(saved[name], names) for name, names in zip(cls.__slots__, values, strict=True)})
        except (KeyError, TypeError, ValueError) as error:
            raise CheckpointError(
                f"the forecast history in the checkpoint is damaged ({error}); resume from another checkpoint of the run"
            ) from None


class RunForecaster:
    """Forecasts each iteration from those before. Owned by the flow's process, called once an iteration."""

    def __init__(self, laws: RunLaws, *, half_life_steps: float, last_full_step: int) -> None:
        """`last_full_step`: after it the fleet has less than a batch to generate, so T_rollout is not forecast."""
        self._laws = laws
        self._decay = 0.5 ** (1.0 / half_life_steps)
        self._last_full_step = last_full_step
        self.history = ForecastHistory()
        """A resumed run sets it to that of its checkpoint."""

    def use(self, laws: RunLaws) -> None:
        """Another plan runs from now on; what was seen of the batches stays good."""
        self._laws = laws

    def check(self, report: IterationReport) -> ForecastCheck | None:
        """Compare the iteration with what was known before it, then learn from it. None where nothing could be forecast."""
        forecast = self.forecast(report.step)
        self.history = history = self._learnt(report, forecast)
        if math.isnan(forecast.t_train_s) and math.isnan(forecast.t_rollout_s):
            return None
        return ForecastCheck(
            forecast=forecast,
            t_train_error=history.train_error.mean.get("error", math.nan),
            t_rollout_error=history.rollout_error.mean.get("error", math.nan),
        )

    def forecast(self, step: int) -> StepForecast:
        """From the iterations so far."""
        laws = self._laws
        generated, trained = self.history.generated.mean, self.history.trained.mean
        has_batch = bool(generated) and step <= self._last_full_step
        return StepForecast(
            t_train_s=forecast_train_s(laws.trainer, laws.shape, TrainedBatch(**trained))
            if laws.trainer and trained
            else math.nan,
            t_rollout_s=forecast_rollout_s(laws, GeneratedBatch(**generated)) if laws.engines and has_batch else math.nan,
        )

    def _learnt(self, report: IterationReport, forecast: StepForecast) -> ForecastHistory:
        """A step that was skipped trained nothing: it says nothing of the trainer."""
        history, decay = self.history, self._decay
        generated, trained, train_error = history.generated, history.trained, history.train_error
        if report.rollout.trajectories:
            generated = generated.including(asdict(GeneratedBatch.of(report.rollout)), decay)
        if report.update.tokens and not report.update.skipped:
            trained = trained.including(asdict(TrainedBatch.of(report.rollout, report.update)), decay)
        if not report.update.skipped:
            train_error = self._compared(train_error, forecast.t_train_s, report.t_train_s)
        rollout_error = self._compared(history.rollout_error, forecast.t_rollout_s, report.t_rollout_s)
        return ForecastHistory(generated=generated, trained=trained, train_error=train_error, rollout_error=rollout_error)

    def _compared(self, errors: RecentMean, forecast_s: float, measured_s: float) -> RecentMean:
        if not math.isfinite(forecast_s) or measured_s <= 0:
            return errors
        return errors.including({"error": abs(forecast_s - measured_s) / measured_s}, self._decay)
