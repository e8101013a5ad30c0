"""Sequences of this rank as packed tensors: what one forward pass consumes."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from megatron.core.packed_seq_params import PackedSeqParams
from torch import Tensor

from libra_core.algorithms.packing import pack
from libra_core.types.batch import TrainingSequence


@dataclass(frozen=True, slots=True, kw_only=True)
class MicroBatch:
    """`T` packed tokens of which `N` enter the loss. Token i is predicted by logit row i - 1 of its own sequence."""

    token_ids: Tensor
    """`[1, T]`, with padding at the end where sequence parallelism wants a multiple of tp."""
    position_ids: Tensor
    packed: PackedSeqParams
    rows: Tensor
    """`[N]` logit rows that predict loss tokens."""
    targets: Tensor
    """`[N]`."""
    sampler_logprobs: Tensor
    advantages: Tensor
    sequence_ids: Tensor
    """`[N]`, counted within the micro-batch."""


def split(sequences: Sequence[TrainingSequence], *, budget_tokens: int) -> list[list[TrainingSequence]]:
    """The sequences by micro-batch."""
    packs = pack([len(sequence.token_ids) for sequence in sequences], budget_tokens=budget_tokens)
    return [[sequences[index] for index in members] for members in packs]


def build_micro_batch(sequences: Sequence[TrainingSequence], *, multiple_of: int, device: torch.device) -> MicroBatch:
    """Pack whole sequences; a mask on a sequence's first token is ignored, since nothing predicts it."""
    lengths = [len(sequence.token_ids) for sequence in sequences]
    padding = -sum(lengths) % multiple_of
    tokens = [token for sequence in sequences for token in sequence.token_ids] + [0] * padding
    segments = [*lengths, padding] if padding else lengths
    bounds = torch.tensor([0, *segments], dtype=torch.int32).cumsum(0, dtype=torch.int32)
    positions = torch.cat([torch.arange(length) for length in segments])
    masks = torch.cat([torch.tensor((0, *sequence.loss_mask[1:]), dtype=torch.bool) for sequence in sequences])
    chosen = masks.nonzero()[:, 0]
    token_ids = torch.tensor(tokens, dtype=torch.int64)
    logprobs = torch.tensor([value for sequence in sequences for value in sequence.logprobs], dtype=torch.float32)
    sequence_ids = torch.repeat_interleave(torch.arange(len(lengths)), torch.tensor(lengths))[chosen]
    advantages = torch.tensor([sequence.advantage for sequence in sequences], dtype=torch.float32)
    bounds = bounds.to(device)
    return MicroBatch(
        token_ids=token_ids[None].to(device),
        position_ids=positions[None].to(device),
        packed=PackedSeqParams(
            qkv_format="thd",
            cu_seqlens_q=bounds,
            cu_seqlens_kv=bounds,
            max_seqlen_q=max(segments),
            max_seqlen_kv=max(segments),
        ),
        rows=(chosen - 1).to(device),
        targets=token_ids[chosen].to(device),
        sampler_logprobs=logprobs[chosen].to(device),
        advantages=advantages[sequence_ids].to(device),
        sequence_ids=sequence_ids.to(device),
    )
