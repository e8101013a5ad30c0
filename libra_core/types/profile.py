"""What a run has measured of itself."""

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class RunProfile:
    """Means over the newest iterations, recent ones counting more."""

    step: int
    measured_steps: int
    trajectories: int
    """Length records that are at hand."""
    train_s_per_token: float
    """Forward and backward of one replica per token of the whole batch, whether it is trained or not."""
    train_fixed_s: float
    """Of the optimizer, once a step."""
    between_s: float
    """From the end of an update until the trainer can take groups again: publication, scoring, logging, calls."""
    trained_share: float
    """Of the batch's tokens; the rest is of groups without learning signal."""
    decode_ratio: float
    """Engines' decode time over what the evaluator says of the same steps."""
    prefill_ratio: float
    """The same of prompts and tool returns; far below 1 where an engine prefills several at once."""
    decode_batch: float
    publication_s: float
    t_iter_s: float
    train_s_per_token_of: dict[int, float] = field(default_factory=dict[int, float])
    """`train_s_per_token` of the steps in which so many replicas trained. Replicas that share a host's cores or links slow each
    other down, so what one of them takes is not what it would take alone."""
    decode_ratio_of: dict[int, float] = field(default_factory=dict[int, float])
    """`decode_ratio` of engines of that degree; it holds for degrees that have served."""
    prefill_ratio_of: dict[int, float] = field(default_factory=dict[int, float])
