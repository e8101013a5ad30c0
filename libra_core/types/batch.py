"""What a trainer rank consumes: sequences with per-token old log-probs and one advantage each; and what it says of a part."""

from dataclasses import dataclass

from libra_core.types.ids import BatchId, PolicyVersion


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingSequence:
    """One trajectory as the loss sees it. All tuples have length L."""

    token_ids: tuple[int, ...]
    loss_mask: tuple[int, ...]
    logprobs: tuple[float, ...]
    """Of the sampling policy; aligned with `token_ids` (position 0 is never sampled)."""
    advantage: float
    group_index: int
    """Sequences of one prompt share it; sequence-mean losses and diagnostics need it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingBatch:
    """One step's data, the same on every rank; each rank picks its own share."""

    batch_id: BatchId
    expected_version: PolicyVersion
    sequences: tuple[TrainingSequence, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class AccumulationReport:
    """One part of a streamed step."""

    tokens: int
    """Of the part, over all data-parallel ranks."""
    loss_tokens: int
    duration_s: float
    """Of the rank that answers: replicas do not wait for each other before the step is finished."""
