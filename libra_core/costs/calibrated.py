"""A calibrated host in place of the kernels' sums: measured where it was measured, elsewhere the sum in the measured proportion.

Measured and summed costs of one host may differ by several times, so a search over both would favour whichever is too short. A
degree or layout that was not measured is therefore the kernels' sum times measured over summed of the nearest one that was.
"""

from collections.abc import Iterable
from dataclasses import replace
from functools import lru_cache
from math import inf

from libra_core.costs.laws import EngineLaws, TrainerLaw, TrainEstimate, TrainTimeParts
from libra_core.costs.layouts import TrainingLoad, TrainingShape
from libra_core.costs.measured import MeasuredProfile
from libra_core.costs.measured_training import TrainerLawFit
from libra_core.costs.rollout import RolloutCosts
from libra_core.costs.training import TrainingCosts
from libra_core.types.laws import EngineLaw

_BATCH, _CONTEXT_TOKENS = 16, 16 * 512
"""The decode step at which measured and summed engines are compared."""
_PROMPT_TOKENS = 512


def calibrated_engines(profile: MeasuredProfile, kernels: RolloutCosts, degrees: Iterable[int] = ()) -> EngineLaws:
    """The kernels' table corrected by what was measured; caches and what fits stay those of the device."""
    measured, summed = profile.engine_laws, kernels.laws((*degrees, *profile.engine_laws.of))
    bases = sorted(measured.of.keys() & summed.of.keys())

    def corrected(tp: int, law: EngineLaw) -> EngineLaw:
        if tp in bases:
            return replace(measured[tp], kv_tokens=law.kv_tokens)
        base = max((degree for degree in bases if degree < tp), default=bases[0])
        fitted, predicted = measured[base], summed[base]
        source = f"tp {tp} derived, the kernels of {kernels.device.name} times what tp {base} measured over them"
        return replace(
            law.scaled(
                fitted.step_s(_BATCH, _CONTEXT_TOKENS) / predicted.step_s(_BATCH, _CONTEXT_TOKENS),
                fitted.prefill_s(_PROMPT_TOKENS) / predicted.prefill_s(_PROMPT_TOKENS),
            ),
            source=source,
        )

    return summed.mapped(corrected) if bases else summed


def calibrated_trainer(profile: MeasuredProfile, kernels: TrainingCosts) -> TrainerLaw:
    """The kernels corrected by a profile with at least one trainer; memory and what fits stay those of the device."""
    measured = {(law.tp, law.pp): law for law in profile.trainers}
    plainest = min(measured)

    def nearest(shape: TrainingShape) -> TrainingShape:
        """A measured layout; the one of the same tp and pp, else the plainest."""
        tp, pp = (shape.tp, shape.pp) if (shape.tp, shape.pp) in measured else plainest
        return TrainingShape(tp=tp, pp=pp, recompute=False, distributed_optimizer=False, sequence_parallel=False)

    @lru_cache(maxsize=4096)  # a search asks for many layouts of the same base and share
    def ratio_of(base: TrainingShape, share: TrainingLoad) -> float:
        predicted = kernels.estimate(base, share)
        return measured[base.tp, base.pp].busy_s(share, predicted.num_micro_batches) / _busy_s(predicted.parts)

    def evaluate(shape: TrainingShape, load: TrainingLoad) -> TrainEstimate:
        predicted = kernels.estimate(shape, load)
        if not kernels.shape_fit(shape).fits:
            return predicted
        share = _share(load, shape.dp)
        ratio = ratio_of(replace(nearest(shape), micro_batch_tokens=shape.micro_batch_tokens), share)
        law = measured[shape.tp, shape.pp] if _is_plain(shape) and (shape.tp, shape.pp) in measured else None
        parts = _measured_parts(law, share, predicted, ratio) if law else _scaled_parts(predicted.parts, ratio)
        total = parts.total_s
        return replace(
            predicted, t_train_s=total if predicted.fit.fits else inf, parts=parts, tp_share=parts.tp_communication_s / total
        )

    def source(shape: TrainingShape) -> str:
        name, base = f"tp {shape.tp} pp {shape.pp}", nearest(shape)
        if _is_plain(shape) and (shape.tp, shape.pp) in measured:
            error = measured[shape.tp, shape.pp].held_out_median_error
            rest = f"; the reduction over dp {shape.dp} is that of the kernels" if shape.dp > 1 else ""
            return f"{name} measured {profile.measured_on} (held-out median error {error:.1%}){rest}"
        kept = f"the kernels of {kernels.device.name} times what tp {base.tp} pp {base.pp} measured over them"
        return f"{name}{' with recomputation' if shape.recompute else ''} derived, {kept}"

    return TrainerLaw(shape_fit=kernels.shape_fit, evaluate=evaluate, source=source)


def _is_plain(shape: TrainingShape) -> bool:
    """As the calibration trains: one replica without recomputation, expert, context or sequence parallelism."""
    return shape.cp == 1 and shape.ep == 1 and not shape.recompute and not (shape.sequence_parallel and shape.tp > 1)


def _measured_parts(law: TrainerLawFit, share: TrainingLoad, predicted: TrainEstimate, ratio: float) -> TrainTimeParts:
    busy_s = law.busy_s(share, predicted.num_micro_batches)
    return TrainTimeParts(
        forward_backward_s=busy_s,
        bubble_s=busy_s * (law.pp - 1) / predicted.num_micro_batches,
        dp_exposed_s=predicted.parts.dp_exposed_s,
        optimizer_s=law.step_s,
        logprob_s=predicted.parts.logprob_s * ratio,
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
