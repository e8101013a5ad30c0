"""One optimizer step on this rank: share, pack, score what the loss needs, forward and backward, Adam, one report."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import isfinite
from time import perf_counter, time
from typing import Any

import torch
from torch import Tensor

from libra_core.engines.megatron.micro_batch import MicroBatch, build_micro_batch, split_batch
from libra_core.engines.megatron.model import TrainedModel
from libra_core.engines.megatron.spec import TrainerSpec
from libra_core.engines.megatron.step import LossInputs, StepSums, forward_backward, score
from libra_core.engines.megatron.world import World
from libra_core.errors import NumericsError
from libra_core.types.batch import TrainingBatch, TrainingSequence
from libra_core.types.ids import PolicyVersion
from libra_core.types.reports import UpdateReport


@dataclass(frozen=True, slots=True, kw_only=True)
class Accumulated:
    """Gradients are in the buffers; this is what was seen on the way, of this rank's replica."""

    sums: StepSums
    tokens: int
    micro_batches: int
    logprob_s: float
    forward_backward_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Accumulator:
    """Runs steps on a rank's model. Holds no state of its own."""

    spec: TrainerSpec
    world: World
    model: TrainedModel
    reference: torch.nn.Module | None

    @property
    def token_multiple(self) -> int:
        """Sequence parallelism cuts the tokens of a micro-batch into tp equal parts."""
        return self.world.tp_size if self.spec.training.layout.sequence_parallel else 1

    def update(self, batch: TrainingBatch, *, version: PolicyVersion, learning_rate: float) -> UpdateReport:
        """Apply the batch to `version`, or report it as skipped when its gradient is zero by construction.

        Raises:
            NumericsError: on every rank, before anything is changed, when the loss is not finite.
        """
        started_s, start = time(), perf_counter()
        if not self._has_signal(batch):
            return _skipped(batch, version=version, learning_rate=learning_rate, started_s=started_s)
        done = self.run(batch.sequences)
        means = self._means(done)
        if not isfinite(float(means["loss"])):
            raise NumericsError(
                f"the loss of batch {batch.batch_id} at version {version} is {means['loss']}; the weights were not changed: "
                "look for extreme log-probs in the batch, and lower training.optimizer.learning_rate"
            )
        optimizer_start = perf_counter()
        for group in self.model.optimizer.param_groups:
            group["lr"] = learning_rate
        _, grad_norm, _ = self.model.optimizer.step()
        self.clear()
        end = perf_counter()
        seconds = (done.logprob_s, done.forward_backward_s, end - optimizer_start, end - start, started_s)
        return UpdateReport(
            step=version,
            policy_version=PolicyVersion(version + 1),
            grad_norm=float(grad_norm),
            learning_rate=learning_rate,
            **means,
            **self._slowest(seconds),
        )

    def run(self, sequences: Sequence[TrainingSequence], *, force_all_reduce: bool = False) -> Accumulated:
        """Leave the global gradient of this rank's parameters in the buffers."""
        start = perf_counter()
        training = self.spec.training
        packs = split_batch(
            sequences, dp_rank=self.world.dp_rank, dp_size=self.world.dp_size, budget_tokens=training.micro_batch_tokens
        )
        batches = [build_micro_batch(pack, multiple_of=self.token_multiple, device=self.world.device) for pack in packs]
        inputs = LossInputs(
            config=training.loss,
            temperature=self.spec.temperature,
            max_new_tokens=self.spec.max_new_tokens,
            old_logprobs=self._score(self.model.wrapped, batches) if training.loss.old_logprobs == "recompute" else None,
            reference_logprobs=self._score(self.reference, batches) if self.reference is not None else None,
        )
        scored = perf_counter()
        self.clear()
        sums = forward_backward(self.model.wrapped, batches, inputs, force_all_reduce=force_all_reduce)
        return Accumulated(
            sums=sums,
            tokens=sum(batch.num_tokens for batch in batches),
            micro_batches=len(batches),
            logprob_s=scored - start,
            forward_backward_s=perf_counter() - scored,
        )

    def clear(self) -> None:
        """Both are needed: Megatron leaves `p.grad` aliased to `main_grad`, and the next backward would add it twice."""
        self.model.optimizer.zero_grad()
        self.model.wrapped.zero_grad_buffer()

    def _score(self, model: torch.nn.Module, batches: Sequence[MicroBatch]) -> list[Tensor]:
        return score(model, batches, temperature=self.spec.temperature)

    def _has_signal(self, batch: TrainingBatch) -> bool:
        """Entropy and KL terms have a gradient even where every advantage is zero."""
        loss = self.spec.training.loss
        sampled = [sequence for sequence in batch.sequences if any(sequence.loss_mask[1:])]
        if loss.entropy_coefficient or loss.kl_coefficient:
            return bool(sampled)
        return any(sequence.advantage for sequence in sampled)

    def _means(self, done: Accumulated) -> dict[str, Any]:
        """Token-weighted global means and global counts; the same on every rank."""
        mine = [*done.sums.as_list(), float(done.tokens), float(done.micro_batches)]
        totals, peaks = self.world.sum_and_max(mine if self.world.reports else [0.0] * len(mine), [done.sums.importance_max])
        loss, weight, entropy, kl, clipped, importance, loss_tokens, tokens, micro_batches = totals
        return {
            "loss": loss / weight,
            "entropy": entropy / loss_tokens,
            "kl": kl / loss_tokens,
            "clip_fraction": clipped / loss_tokens,
            "importance_mean": importance / loss_tokens,
            "importance_max": peaks[0],
            "tokens": int(tokens),
            "loss_tokens": int(loss_tokens),
            "micro_batches": int(micro_batches),
        }

    def _slowest(self, seconds: tuple[float, ...]) -> dict[str, float]:
        """The step takes as long as its slowest rank."""
        _, peaks = self.world.sum_and_max([0.0], list(seconds))
        return dict(zip(("logprob_s", "forward_backward_s", "optimizer_s", "duration_s", "started_s"), peaks, strict=True))


def _skipped(batch: TrainingBatch, *, version: PolicyVersion, learning_rate: float, started_s: float) -> UpdateReport:
    """Nothing was computed, so means are zero and the importance ratio is 1."""
    return UpdateReport(
        step=version,
        policy_version=PolicyVersion(version + 1),
        loss=0.0,
        grad_norm=0.0,
        entropy=0.0,
        kl=0.0,
        clip_fraction=0.0,
        importance_mean=1.0,
        importance_max=1.0,
        learning_rate=learning_rate,
        tokens=0,
        loss_tokens=sum(sum(sequence.loss_mask[1:]) for sequence in batch.sequences),
        micro_batches=0,
        logprob_s=0.0,
        forward_backward_s=0.0,
        optimizer_s=0.0,
        duration_s=0.0,
        started_s=started_s,
        skipped=True,
    )
