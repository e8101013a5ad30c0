"""A step on this rank: parts of the batch add up gradients as they come, then one reduction, Adam, one report."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from math import isfinite
from time import time

import torch
from torch import Tensor

from libra_core.algorithms.packing import share
from libra_core.engines.device_clock import device_time_s
from libra_core.engines.megatron.exchange import CoreExchange
from libra_core.engines.megatron.micro_batch import MicroBatch, build_micro_batch, split
from libra_core.engines.megatron.model import TrainedModel
from libra_core.engines.megatron.spec import TrainerSpec
from libra_core.engines.megatron.step import LossInputs, StepSums, forward_backward, reduce_gradients, score
from libra_core.engines.megatron.world import MegatronWorld
from libra_core.errors import NumericsError
from libra_core.types.batch import AccumulationReport, TrainingSequence
from libra_core.types.ids import BatchId, PolicyVersion
from libra_core.types.reports import UpdateReport


@dataclass(slots=True, kw_only=True)
class OpenStep:
    """What was seen of a batch whose gradients are adding up in the model's buffers. Dropping it discards the step."""

    batch_id: BatchId
    version: PolicyVersion
    started_s: float
    replica: int
    """Which share is this rank's."""
    loads: list[int]
    """Tokens of every replica so far, those of hybrid replicas after the core's; the same on every rank."""
    signals: list[bool]
    """By replica, whether its gradient can be other than zero; the same on every rank."""
    given: list[list[int]]
    """By replica, numbers of its sequences in the order of accumulation; the same on every rank."""
    trained: set[int]
    """Replicas whose gradients are in the step: all, but for hybrid ones that did not contribute."""
    collected: bool = False
    """Hybrid replicas have contributed or are dropped; what is added from now on is for the core alone."""
    sums: StepSums = field(default_factory=StepSums)
    micro_batches: int = 0
    """Of this rank's replica."""
    logprob_s: float = 0.0
    forward_backward_s: float = 0.0
    busy_s: float = 0.0

    @property
    def has_signal(self) -> bool:
        return any(self.signals[replica] for replica in self.trained)

    @property
    def tokens(self) -> int:
        return sum(self.loads[replica] for replica in self.trained)


@dataclass(frozen=True, slots=True, kw_only=True)
class Accumulator:
    """Runs steps on a rank's model. Holds no state of its own; at most one `OpenStep` may be in use, the one opened last."""

    spec: TrainerSpec
    world: MegatronWorld
    model: TrainedModel
    reference: torch.nn.Module | None
    exchange: CoreExchange | None = None
    """With hybrid replicas; None without any, and on the replicas themselves."""

    @property
    def token_multiple(self) -> int:
        """Sequence parallelism cuts the tokens of a micro-batch into tp equal parts."""
        return self.world.tp_size if self.spec.training.layout.sequence_parallel else 1

    def open(self, batch_id: BatchId, version: PolicyVersion, place: tuple[int, int] | None = None) -> OpenStep:
        """Start from zero gradients. `place`: number of this replica and of all that share the step, where it is no core replica.

        Both calls are needed: Megatron leaves `p.grad` aliased to `main_grad`, and the next backward would add it twice.
        """
        self.model.optimizer.zero_grad()
        self.model.wrapped.zero_grad_buffer()
        if self.exchange is not None:
            self.exchange.begin(version)
        hybrids = len(self.exchange.active) if self.exchange is not None else 0
        replica, count = place or (self.world.dp_rank, self.world.dp_size + hybrids)
        return OpenStep(
            batch_id=batch_id,
            version=version,
            started_s=time(),
            replica=replica,
            loads=[0] * count,
            signals=[False] * count,
            given=[[] for _ in range(count)],
            trained=set(range(count)),
        )

    def add(self, step: OpenStep, sequences: Sequence[TrainingSequence]) -> AccumulationReport:
        """Forward and backward over this rank's share. Waits for the ranks of its own replica only."""
        start = device_time_s(self.world.device)
        training = self.spec.training
        mine = self._take_share(step, sequences)
        packs = split(mine, budget_tokens=training.micro_batch_tokens)
        batches = [build_micro_batch(pack, multiple_of=self.token_multiple, device=self.world.device) for pack in packs]
        inputs = LossInputs(
            config=training.loss,
            temperature=self.spec.temperature,
            max_new_tokens=self.spec.max_new_tokens,
            old_logprobs=self._score(self.model.wrapped, batches) if training.loss.old_logprobs == "recompute" else None,
            reference_logprobs=self._score(self.reference, batches) if self.reference is not None else None,
        )
        scored = device_time_s(self.world.device)
        forward_backward(self.model.wrapped, batches, inputs, step.sums)
        end = device_time_s(self.world.device)
        step.micro_batches += len(batches)
        step.logprob_s += scored - start
        step.forward_backward_s += end - scored
        step.busy_s += end - start
        return AccumulationReport(
            tokens=sum(len(sequence.token_ids) for sequence in sequences),
            loss_tokens=sum(sum(sequence.loss_mask[1:]) for sequence in sequences),
            duration_s=end - start,
        )

    def collect_hybrids(self, step: OpenStep) -> tuple[int, ...]:
        """Collect what hybrid replicas contribute; numbers of the sequences that are lost with one. Collective, once per step."""
        if self.exchange is None or step.collected:
            return ()
        self.exchange.collect(step)
        step.collected = True
        return self.exchange.last.lost_sequences

    def finish(self, step: OpenStep, *, learning_rate: float) -> UpdateReport:
        """Divide, clip and apply what was added, or report the step as skipped when its gradient is zero by construction.

        Raises:
            NumericsError: on every rank, before anything is changed, when the loss is not finite.
        """
        start = device_time_s(self.world.device)
        self.collect_hybrids(step)
        # Of the global loss, so that all ranks raise or none: one that raised alone would leave the others in the reduction below
        # until their collective times out.
        report = self._report(step, learning_rate)
        if not isfinite(report.loss):
            raise NumericsError(
                f"the loss of batch {step.batch_id} at version {step.version} is {report.loss}; the weights were not changed: "
                "look for extreme log-probs in the batch, and lower training.optimizer.learning_rate"
            )
        # By construction, not by value: on a zero gradient Adam would still move the weights by its momentum, and ranks that
        # judged by their own rounding could disagree whether to enter the collective.
        if step.has_signal:
            self.reduce(step, force_all_reduce=self.exchange is not None and self.exchange.needs_whole_gradient)
            if self.exchange is not None:
                self.exchange.keep()
        reduced = device_time_s(self.world.device)
        grad_norm = self._apply(learning_rate) if step.has_signal else 0.0
        end = device_time_s(self.world.device)
        seconds = {
            "logprob_s": step.logprob_s,
            "forward_backward_s": step.forward_backward_s + reduced - start,
            "optimizer_s": end - reduced,
            "duration_s": step.busy_s + end - start,
            "started_s": step.started_s,
        }
        return replace(report, grad_norm=grad_norm, **self._slowest(seconds))

    def reduce(self, step: OpenStep, *, force_all_reduce: bool = False) -> None:
        """Leave the global gradient of this rank's parameters in the buffers. Only once per step."""
        reduce_gradients(self.model.wrapped, step.sums.weight, force_all_reduce=force_all_reduce)

    def _take_share(self, step: OpenStep, sequences: Sequence[TrainingSequence]) -> list[TrainingSequence]:
        lengths = [len(sequence.token_ids) for sequence in sequences]
        replicas = self.world.dp_size if step.collected else len(step.loads)
        shares = share(lengths, loads=step.loads[:replicas])
        first = sum(len(given) for given in step.given)
        # Every rank books all shares: without a message it then knows what a replica that is lost held, and which number it has.
        for replica, ours in enumerate(shares):
            step.loads[replica] += sum(lengths[index] for index in ours)
            step.signals[replica] |= self._has_signal([sequences[index] for index in ours])
            step.given[replica] += [first + index for index in ours]
        return [sequences[index] for index in shares[step.replica]]

    def _score(self, model: torch.nn.Module, batches: Sequence[MicroBatch]) -> list[Tensor]:
        return score(model, batches, temperature=self.spec.temperature)

    def _has_signal(self, sequences: Sequence[TrainingSequence]) -> bool:
        """Entropy and KL terms have a gradient even where every advantage is zero."""
        loss = self.spec.training.loss
        sampled = [sequence for sequence in sequences if any(sequence.loss_mask[1:])]
        if loss.entropy_coefficient or loss.kl_coefficient:
            return bool(sampled)
        return any(sequence.advantage for sequence in sampled)

    def _apply(self, learning_rate: float) -> float:
        """The gradient norm before clipping."""
        for group in self.model.optimizer.param_groups:
            group["lr"] = learning_rate
        _, grad_norm, _ = self.model.optimizer.step()
        return float(grad_norm)

    def _report(self, step: OpenStep, learning_rate: float) -> UpdateReport:
        """Token-weighted global means and global counts, the same on every rank; the norm and the times are not known yet.

        Without a token, an importance ratio of 1.
        """
        mine = [*step.sums.as_list(), float(step.micro_batches)]
        totals, peaks = self.world.sum_and_max(mine if self.world.reports else [0.0] * len(mine), [step.sums.importance_max])
        loss, weight, entropy, kl, clipped, dual_clipped, importance, loss_tokens, micro_batches = totals
        tokens = max(loss_tokens, 1.0)
        return UpdateReport(
            step=step.version,
            policy_version=PolicyVersion(step.version + 1),
            loss=loss / max(weight, 1.0),
            grad_norm=0.0,
            entropy=entropy / tokens,
            kl=kl / tokens,
            clip_fraction=clipped / tokens,
            dual_clip_fraction=dual_clipped / tokens,
            importance_mean=importance / tokens if loss_tokens else 1.0,
            importance_max=peaks[0] if loss_tokens else 1.0,
            learning_rate=learning_rate,
            tokens=step.tokens,
            loss_tokens=int(loss_tokens),
            micro_batches=int(micro_batches),
            logprob_s=0.0,
            forward_backward_s=0.0,
            optimizer_s=0.0,
            duration_s=0.0,
            started_s=step.started_s,
            skipped=not step.has_signal,
        )

    def _slowest(self, seconds: dict[str, float]) -> dict[str, float]:
        """The step takes as long as its slowest rank."""
        _, peaks = self.world.sum_and_max([0.0], list(seconds.values()))
        return dict(zip(seconds, peaks, strict=True))
