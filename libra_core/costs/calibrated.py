"""A calibrated host in place of the kernels' sums: measured where it was measured, elsewhere the sum in the measured proportion.

Measured and summed costs of one host may differ by several times, so a search over both would favour whichever is too short. A
degree or layout that was not measured is therefore the kernels' sum times measured over summed of the nearest one that was.
"""

from dataclasses import replace
from functools import lru_cache
from math import inf

from libra_core.costs.facts import Fit
from libra_core.costs.layouts import TrainingLoad, TrainingShape
from libra_core.costs.measured import MeasuredProfile, MeasuredRolloutCosts
from libra_core.costs.measured_training import MeasuredTrainingCosts
from libra_core.costs.rollout import RolloutCosts, StepCoefficients, scaled
from libra_core.costs.training import TrainEstimate, TrainingCosts, TrainTimeParts

_BATCH, _CONTEXT_TOKENS = 16, 16 * 512
"""The decode step at which measured and summed engines are compared."""
_PROMPT_TOKENS = 512


class CalibratedEngines:
    """`RolloutCosts` corrected by a profile with at least one engine; its caches and what fits stay those of the device."""

    def __init__(self, profile: MeasuredProfile, kernels: RolloutCosts) -> None:
        self._profile = profile
        self._measured = MeasuredRolloutCosts(profile)
        self._kernels = kernels

    def coefficients(self, tp: int) -> StepCoefficients:
        """Raises `ConfigError` with the reason when an engine of `tp` does not fit."""
        if self._measured.fits(tp).fits:
            return self._measured.coefficients(tp)
        base = self._nearest(tp)
        found, told = self._measured.coefficients(base), self._kernels.coefficients(base)
        step_ratio = found.step_s(_BATCH, _CONTEXT_TOKENS) / told.step_s(_BATCH, _CONTEXT_TOKENS)
        prefill_ratio = found.prefill_s(_PROMPT_TOKENS) / told.prefill_s(_PROMPT_TOKENS)
        kernels = self._kernels.coefficients(tp)
        decode, prefill = scaled(kernels, step_ratio), scaled(kernels, prefill_ratio)
        return replace(decode, **{name: getattr(prefill, name) for name in StepCoefficients.__slots__ if "prefill" in name})

    def kv_tokens(self, tp: int, utilization: float | None = None) -> int:
        return self._kernels.kv_tokens(tp, utilization)

    def fits(self, tp: int) -> Fit:
        return self._kernels.fits(tp)

    def grounding(self, tp: int) -> str:
        """Where the coefficients of a degree come from."""
        laws = {engine.tp: engine for engine in self._profile.engines}
        if tp in laws:
            error = laws[tp].held_out_median_error
            return f"tp {tp} measured {self._profile.measured_on} (held-out median error {error:.1%})"
        return f"tp {tp} derived, the kernels of {self._kernels.device.name} times what tp {self._nearest(tp)} measured over them"

    def _nearest(self, tp: int) -> int:
        measured = self._measured.degrees()
        return max((degree for degree in measured if degree < tp), default=measured[0])


class CalibratedTrainer:
    """`TrainingCosts` corrected by a profile with at least one trainer; memory and what fits stay those of the device."""

    def __init__(self, profile: MeasuredProfile, kernels: TrainingCosts) -> None:
        self._profile = profile
        self._measured = MeasuredTrainingCosts(profile.trainers)
        self._kernels = kernels
        self._ratio = lru_cache(maxsize=4096)(self._measured_over_kernels)

    def shape_fit(self, shape: TrainingShape) -> Fit:
        return self._kernels.shape_fit(shape)

    def estimate(self, shape: TrainingShape, load: TrainingLoad) -> TrainEstimate:
        """Time and memory of one step; `t_train_s` is infinite when the layout is impossible."""
        told = self._kernels.estimate(shape, load)
        if not self.shape_fit(shape).fits:
            return told
        base, share = self._nearest(shape), _share(load, shape.dp)
        ratio = self._ratio(replace(base, micro_batch_tokens=shape.micro_batch_tokens), share)
        measured = self.is_measured(shape)
        parts = self._measured_parts(shape, share, told, ratio) if measured else _scaled_parts(told.parts, ratio)
        total = parts.total_s
        return replace(
            told,
            t_train_s=total if told.fit.fits else inf,
            parts=parts,
            tp_share=parts.tp_communication_s / total,
        )

    def is_measured(self, shape: TrainingShape) -> bool:
        """The calibration trains one replica without recomputation, expert, context or sequence parallelism."""
        plain = shape.cp == 1 and shape.ep == 1 and not shape.recompute and not (shape.sequence_parallel and shape.tp > 1)
        return plain and self._measured.fits(shape.tp, shape.pp).fits

    def grounding(self, shape: TrainingShape) -> str:
        """Where the time of a layout comes from."""
        name = f"tp {shape.tp} pp {shape.pp}"
        if self.is_measured(shape):
            error = self._measured.law(shape.tp, shape.pp).held_out_median_error
            rest = f"; the reduction over dp {shape.dp} is that of the kernels" if shape.dp > 1 else ""
            return f"{name} measured {self._profile.measured_on} (held-out median error {error:.1%}){rest}"
        base = self._nearest(shape)
        kept = f"the kernels of {self._kernels.device.name} times what tp {base.tp} pp {base.pp} measured over them"
        return f"{name}{' with recomputation' if shape.recompute else ''} derived, {kept}"

    def _nearest(self, shape: TrainingShape) -> TrainingShape:
        """A measured layout; the one of the same tp and pp, else the plainest."""
        measured = self._measured.layouts()
        tp, pp = (shape.tp, shape.pp) if (shape.tp, shape.pp) in measured else measured[0]
        return TrainingShape(tp=tp, pp=pp, recompute=False, distributed_optimizer=False, sequence_parallel=False)

    def _measured_over_kernels(self, base: TrainingShape, load: TrainingLoad) -> float:
        told = self._kernels.estimate(base, load)
        law = self._measured.law(base.tp, base.pp)
        return law.busy_s(load, told.num_micro_batches) / _busy_s(told.parts)

    def _measured_parts(self, shape: TrainingShape, share: TrainingLoad, told: TrainEstimate, ratio: float) -> TrainTimeParts:
        law, micro_batches = self._measured.law(shape.tp, shape.pp), told.num_micro_batches
        busy_s = law.busy_s(share, micro_batches)
        return TrainTimeParts(
            forward_backward_s=busy_s,
            tp_communication_s=0.0,
            ep_communication_s=0.0,
            bubble_s=busy_s * (shape.pp - 1) / micro_batches,
            pp_transfer_s=0.0,
            dp_exposed_s=told.parts.dp_exposed_s,
            optimizer_s=law.step_s,
            logprob_s=told.parts.logprob_s * ratio,
        )


def _share(load: TrainingLoad, dp: int) -> TrainingLoad:
    """Of one replica, with the longest sequence of all."""
    return TrainingLoad(
        num_sequences=max(1, load.num_sequences // dp),
        tokens=max(load.tokens / dp, load.longest_tokens),
        squared_tokens=max(load.squared_tokens / dp, load.longest_tokens**2),
        longest_tokens=load.longest_tokens,
    )


def _busy_s(parts: TrainTimeParts) -> float:
    """What a calibration counts as forward and backward of a rank."""
    return parts.forward_backward_s + parts.tp_communication_s + parts.pp_transfer_s


def _scaled_parts(parts: TrainTimeParts, ratio: float) -> TrainTimeParts:
    return TrainTimeParts(**{name: getattr(parts, name) * ratio for name in TrainTimeParts.__slots__})
