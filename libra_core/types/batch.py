"""What a trainer rank consumes: sequences with per-token old log-probs and one advantage each; and what it says of a part."""

from dataclasses import dataclass

from libra_core.types.ids import BatchId, PolicyVersion


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingSequence:
    """One trajectory as the loss sees it. All tuples have length L.

    L = 5, two prompt tokens, three sampled: `loss_mask` (0, 0, 1, 1, 1), `logprobs` (0, 0, -.1, -.7, -.2), one `advantage` 0.67
    for all of them. Three loss tokens; token i is predicted by logit row i - 1.
    """

    token_ids: tuple[int, ...]
    loss_mask: tuple[int, ...]
    logprobs: tuple[float, ...]
    """Of the sampling policy; aligned with `token_ids` (position 0 is never sampled)."""
    advantage: float
    group_index: int
    """Sequences of one prompt share it; sequence-mean losses and diagnostics need it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingBatch:
    """One step's data, the same on every rank; each rank picks its own share.

    32 groups of 8 with signal in 20 of them: 160 sequences, of which each of 2 replicas trains about half of the tokens.
    """

    batch_id: BatchId
    expected_version: PolicyVersion
    sequences: tuple[TrainingSequence, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class StepContributions:
    """Whose gradients are in a finished step; the same on every rank but for the times.

    Six sequences, of which hybrid slot 1 held numbers 2 and 5 and died: `dropped` (1,), the core was given both again as numbers
    6 and 7, and `trained` is (0, 1, 3, 4, 6, 7).
    """

    version: PolicyVersion
    """Of the weights that it started from."""
    trained: tuple[int, ...]
    """Numbers, in the order of accumulation, of the sequences that count; one that counted twice would be here twice."""
    counted: tuple[int, ...] = ()
    """Slots of hybrid replicas whose gradient is in it."""
    dropped: tuple[int, ...] = ()
    """Slots that were active and did not contribute in time."""
    hybrid_tokens: int = 0
    """Of the sequences that hybrid replicas trained."""
    waited_s: float = 0.0
    """For hybrid replicas."""
    stall_s: float = 0.0
    """Of the training thread, in copies for hybrid replicas."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AccumulationReport:
    """One part of a streamed step."""

    tokens: int
    """Of the part, over all data-parallel ranks."""
    loss_tokens: int
    duration_s: float
    """Of the rank that answers: replicas do not wait for each other before the step is finished."""
