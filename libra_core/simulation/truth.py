"""What is true in the simulated world: step-time laws of engines and trainer, seconds of publications and transitions.

Read from tables fitted to measurements (`configs/study/truth`). A mismatch stretches it, so that a planner which believes the
tables is wrong by a known amount.
"""

from pathlib import Path

from pydantic import Field, model_validator

from libra_core.config.base import Section
from libra_core.simulation.tables import load_table
from libra_core.types.laws import EngineLaw

_LOSS_BATCH = 256


class TrainerTruth(Section):
    """FLOP of a trajectory, and how fast a world of a size and degree works them off."""

    parameters: float = Field(gt=0)
    attention_width: float = Field(ge=0)
    flops_per_parameter_token: float = Field(gt=0)
    flops_per_width_pair: float = Field(ge=0)
    peak_flops: float = Field(gt=0)
    mfu: float = Field(gt=0, le=1)
    mfu_loss_per_gpu: float = Field(default=0.0, ge=0)
    """Smaller shares pack worse: for steps of 256 trajectories; half of it for steps of 512."""
    tp_time: dict[int, float] = Field(default_factory=lambda: dict.fromkeys((1, 2, 4, 8), 1.0))
    fixed_s: float = Field(ge=0)
    """Optimizer, clipping, bookkeeping: once a step."""
    streamed_time: float = Field(default=1.05, ge=1)
    """Training time of a streamed step over that of a whole one: smaller micro-batches, more of them."""
    fixed_tokens: float = Field(default=0.0, ge=0)
    """Tokens' worth of work per trajectory that does not depend on its length: padding, poor packing."""

    def flop_coefficients(self) -> tuple[float, float]:
        """Per token, and per squared token, of one trajectory."""
        return self.flops_per_parameter_token * self.parameters, self.flops_per_width_pair * self.attention_width

    def flops(self, gpus: int, tp: int, bubble_share: float = 0.0, *, batch: int = _LOSS_BATCH) -> float:
        """Achieved FLOP/s of a training world on steps of `batch` trajectories; the efficiency never falls below a tenth of the
        table's."""
        efficiency = max(self.mfu - self.mfu_loss_per_gpu * gpus * _LOSS_BATCH / batch, 0.1 * self.mfu)
        return gpus * self.peak_flops * efficiency * (1.0 - bubble_share) / self.tp_time[tp]


class PublicationTruth(Section):
    """New weights on the engines."""

    trainer_waits_s: float = Field(ge=0)
    """Until every engine serves the new weights."""
    trainer_sends_s: float | None = Field(default=None, ge=0)
    """Of it, what the trainer itself works at; it waits for no more where publications overlap with training. Unset: all."""
    engines_pause_s: float = Field(ge=0)
    recompute_kv: bool = False
    """Whether running sequences are prefilled again; unused prefixes are void in any case."""

    @model_validator(mode="after")
    def _sending_is_a_part(self) -> "PublicationTruth":
        if self.trainer_sends_s is not None and self.trainer_sends_s > self.trainer_waits_s:
            raise ValueError(
                f"trainer_sends_s = {self.trainer_sends_s} is a part of trainer_waits_s = {self.trainer_waits_s}; lower it"
            )
        return self

    def keeps_trainer_s(self, overlap: bool) -> float:
        """How long the trainer cannot train after a step."""
        return self.trainer_waits_s if self.trainer_sends_s is None or not overlap else self.trainer_sends_s


class TransitionTruth(Section):
    """Seconds until what a transition starts can work."""

    engine_start_s: float = Field(ge=0)
    trainer_rebuild_s: float = Field(ge=0)
    hybrid_engine_s: float = Field(ge=0)
    hybrid_trainer_s: float = Field(ge=0)

    def scaled(self, factor: float) -> "TransitionTruth":
        return TransitionTruth(**{name: value * factor for name, value in self.model_dump().items()})


class Truth(Section):
    """One model on one kind of device."""

    name: str
    engines_source: str = ""
    engines: dict[int, EngineLaw]
    """Prefills have no fixed cost here: the event kernel knows none."""
    trainer_source: str = ""
    trainer: TrainerTruth
    publication_source: str = ""
    publication: PublicationTruth
    colocated_switch_s: float = Field(default=15.0, ge=0)
    transitions_source: str = ""
    transitions: TransitionTruth

    @model_validator(mode="after")
    def _engines_can_be_simulated(self) -> "Truth":
        for tp, law in self.engines.items():
            if law.a_s <= 0 or law.kv_tokens < 1 or law.prefill_a_s > 0:
                raise ValueError(
                    f"engines.{tp}: a_s = {law.a_s} must be above 0, kv_tokens = {law.kv_tokens} at least 1 and prefill_a_s = "
                    f"{law.prefill_a_s} 0, for the simulated engine takes time by the token; spread it over prefill_b_s_per_token"
                )
        return self


class Mismatch(Section):
    """Factors by which the truth differs from the tables that planners may know."""

    decode: float = Field(default=1.0, gt=0)
    prefill: float = Field(default=1.0, gt=0)
    train: float = Field(default=1.0, gt=0)
    transitions: float = Field(default=1.0, ge=0)
    train_fixed_tokens: float = Field(default=0.0, ge=0)
    """Length-independent training work per trajectory, in tokens."""

    def applied(self, truth: Truth) -> Truth:
        trainer = truth.trainer.model_copy(
            update={"mfu": truth.trainer.mfu / self.train, "fixed_tokens": self.train_fixed_tokens}
        )
        engines = {tp: law.scaled(self.decode, self.prefill) for tp, law in truth.engines.items()}
        return truth.model_copy(
            update={
                "engines": engines,
                "trainer": trainer,
                "transitions": truth.transitions.scaled(self.transitions),
            }
        )


def load_truth(path: str | Path) -> Truth:
    """Raises `ConfigError` with the file and the first mistake."""
    return load_table(path, Truth, "truth table")
