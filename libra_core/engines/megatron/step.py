"""Megatron's own schedules over packed micro-batches: to learn, with one reduction per step, and to score."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial

import torch
from megatron.core import parallel_state
from megatron.core.distributed import DistributedDataParallel, finalize_model_grads
from megatron.core.pipeline_parallel import get_forward_backward_func
from megatron.core.process_groups_config import ProcessGroupCollection
from torch import Tensor

from libra_core.algorithms.losses import LossDiagnostics, LossTokens, policy_loss
from libra_core.config.training import LossConfig
from libra_core.engines.megatron.micro_batch import MicroBatch
from libra_core.engines.megatron.vocab_logprobs import logprob_entropy


@dataclass(slots=True, kw_only=True)
class StepSums:
    """What the last pipeline stage of one data-parallel replica adds up over its micro-batches; empty on other stages."""

    loss: float = 0.0
    weight: int = 0
    diagnostics: list[LossDiagnostics] = field(default_factory=list)
    joined: list[tuple[float, ...]] = field(default_factory=list)
    """`portable` sums of hybrid replicas whose gradients were added to this one's; their weights are in `weight`."""

    def as_list(self) -> list[float]:
        """Addable over ranks, in the order loss, weight, entropy, mismatch kl, clipped, dual clipped, importance, loss tokens."""
        loss, *others = (sum(column) for column in zip(*(row[:-1] for row in (self.portable(), *self.joined)), strict=True))
        return [loss, float(self.weight), *others]

    @property
    def importance_max(self) -> float:
        return max(row[-1] for row in (self.portable(), *self.joined))

    def join(self, portable: tuple[float, ...], weight: int) -> None:
        """Count a hybrid replica's sums, whose gradient is added to this rank's."""
        self.joined.append(portable)
        self.weight += weight

    def portable(self) -> tuple[float, ...]:
        """All but the weight, for another world, in the same order; the largest importance comes last."""
        parts = [(d.entropy, d.mismatch_kl, d.clipped, d.dual_clipped, d.importance, float(d.tokens)) for d in self.diagnostics]
        sums = [float(sum(column)) for column in zip(*parts, strict=True)] if parts else [0.0] * 6
        return self.loss, *sums, max((d.importance_max for d in self.diagnostics), default=0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class LossInputs:
    """What the loss needs besides the micro-batches; log-probs are per micro-batch, None where they are not wanted."""

    config: LossConfig
    temperature: float
    max_new_tokens: int
    old_logprobs: list[Tensor] | None = None
    reference_logprobs: list[Tensor] | None = None


def forward_backward(model: torch.nn.Module, micro_batches: Sequence[MicroBatch], inputs: LossInputs, sums: StepSums) -> None:
    """Add this replica's gradient of `Σ loss` to the main_grad buffers, and what was seen to `sums`; nothing is divided."""

    def loss_of(index: int, output: Tensor) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
        batch = micro_batches[index]
        logprobs, entropy = _logprobs(output, batch, inputs.temperature)
        tokens = LossTokens(
            logprobs=logprobs,
            entropy=entropy,
            sampler_logprobs=batch.sampler_logprobs,
            old_logprobs=inputs.old_logprobs[index] if inputs.old_logprobs else batch.sampler_logprobs,
            reference_logprobs=inputs.reference_logprobs[index] if inputs.reference_logprobs else None,
            advantages=batch.advantages,
            sequence_ids=batch.sequence_ids,
        )
        loss = policy_loss(tokens, inputs.config, max_new_tokens=inputs.max_new_tokens)
        sums.loss += float(loss.total.detach())
        sums.weight += loss.weight
        sums.diagnostics.append(loss.diagnostics)
        return loss.total, torch.tensor(loss.weight, dtype=torch.int, device=output.device), {}

    def forward_step(batches: Iterator[tuple[int, MicroBatch]], stage: torch.nn.Module) -> tuple[Tensor, object]:
        index, batch = next(batches)
        return _forward(stage, batch), partial(loss_of, index)

    _run_schedule(forward_step, model, micro_batches, forward_only=False)


def reduce_gradients(model: DistributedDataParallel, weight: int, *, force_all_reduce: bool) -> None:
    """Turn added-up gradients into those of `Σ loss / global Σ weight`, once per step. Collective over all ranks.

    Sums over replicas, over the ranks of sequence parallelism and over the two copies of a tied embedding, none of which may
    happen twice. `weight` counts on the last stage only. `force_all_reduce` gives every rank the whole gradient although the
    optimizer is distributed.
    """
    groups = ProcessGroupCollection()
    groups.tp = parallel_state.get_tensor_model_parallel_group()
    groups.pp = parallel_state.get_pipeline_model_parallel_group()
    groups.dp_cp = parallel_state.get_data_parallel_group(with_context_parallel=True)
    # Middle stages have no embedding group, which the defaults of finalize_model_grads assert on.
    groups.embd = parallel_state.get_embedding_group(check_initialized=False)
    groups.pos_embd = parallel_state.get_position_embedding_group(check_initialized=False)
    divisor = torch.tensor(weight, dtype=torch.int64, device=next(model.parameters()).device)
    finalize_model_grads([model], divisor, pg_collection=groups, force_all_reduce=force_all_reduce)


def score(model: torch.nn.Module, micro_batches: Sequence[MicroBatch], *, temperature: float) -> list[Tensor]:
    """Log-probs of the loss tokens per micro-batch, without gradient; empty on all but the last pipeline stage."""
    results: dict[int, Tensor] = {}

    def keep(index: int, output: Tensor) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
        results[index] = _logprobs(output, micro_batches[index], temperature)[0].detach()
        return output.new_zeros(()), torch.tensor(1, dtype=torch.int, device=output.device), {}

    def forward_step(batches: Iterator[tuple[int, MicroBatch]], stage: torch.nn.Module) -> tuple[Tensor, object]:
        index, batch = next(batches)
        return _forward(stage, batch), partial(keep, index)

    _run_schedule(forward_step, model, micro_batches, forward_only=True)
    return [results[index] for index in sorted(results)]


def _forward(stage: torch.nn.Module, batch: MicroBatch) -> Tensor:
    return stage(batch.token_ids, batch.position_ids, None, packed_seq_params=batch.packed)


def _logprobs(output: Tensor, batch: MicroBatch, temperature: float) -> tuple[Tensor, Tensor]:
    """Only the rows that predict loss tokens go through the softmax."""
    group = parallel_state.get_tensor_model_parallel_group()
    return logprob_entropy(output[0].index_select(0, batch.rows), batch.targets, temperature=temperature, group=group)


def _run_schedule(
    forward_step: object,
    model: torch.nn.Module,
    micro_batches: Sequence[MicroBatch],
    *,
    forward_only: bool,
) -> None:
    """A replica without micro-batches skips the pass, on all its ranks: no collective of a dense model crosses replicas."""
    if not micro_batches:
        return
    get_forward_backward_func()(
        forward_step_func=forward_step,
        data_iterator=iter(enumerate(micro_batches)),
        model=[model],
        num_microbatches=len(micro_batches),
        seq_length=max(batch.token_ids.shape[1] for batch in micro_batches),
        micro_batch_size=1,
        forward_only=forward_only,
    )
