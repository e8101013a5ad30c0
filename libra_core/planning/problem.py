"""What the planner is asked: cluster, regime of the run, lengths, costs."""

from dataclasses import dataclass, field

from libra_core.costs.api import EngineLaws, ModelFacts, PublicationTime, TrainerLaw, TrainingShape
from libra_core.planning.confusion import RouterSkill
from libra_core.planning.lengths import LengthTable
from libra_core.planning.runnable import Sessions
from libra_core.types.forecast import Mode
from libra_core.types.plan import Plan


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """Nodes of equal size; the last one may be smaller."""

    num_gpus: int
    gpus_per_node: int = 8

    @property
    def node_sizes(self) -> tuple[int, ...]:
        full, rest = divmod(self.num_gpus, self.gpus_per_node)
        return (self.gpus_per_node,) * full + ((rest,) if rest else ())

    def groups_of(self, size: int) -> int:
        """How many sets of `size` GPUs fit when none may span nodes."""
        full, rest = divmod(self.num_gpus, self.gpus_per_node)
        return full * (self.gpus_per_node // size) + rest // size


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelShape:
    """What the training tree must divide."""

    num_layers: int
    num_experts: int = 0
    weight_bytes: float = 0.0
    kv_bytes_per_token: float = 0.0

    @classmethod
    def of(cls, model: ModelFacts) -> "ModelShape":
        return cls(
            num_layers=model.num_layers,
            num_experts=model.num_experts,
            weight_bytes=model.weight_bytes,
            kv_bytes_per_token=model.kv_bytes_per_token,
        )


SENDING_SHARE = 0.75
"""Of a publication, what the trainer itself works at: 15.0 of 20.2 s in marin (docs/references.md#weight-synchronisation)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Regime:
    """How the run is paced; see `RolloutConfig` for the meaning of staleness, slack and KV fill."""

    batch: int
    """Trajectories per step (K)."""
    group_size: int
    staleness: int = 1
    age_slack: int = 0
    kv_fill: float = 0.7
    max_num_seqs: int = 256
    longest_tokens: int = 40960
    """No trajectory is longer; memory is checked here."""
    streamed: tuple[bool, ...] = (False, True)
    """Which kinds of step are candidates."""
    streamed_loss: float = 1.05
    """Training time of a streamed step over that of a whole one (docs/measurements.md#streamed-steps-slack-and-the-cap)."""
    trainer_waits: float = 0.0
    """Share of a publication during which the trainer stands still: 1 where it waits for the engines, less where publications
    overlap with training, 0 where that is within the measured training time."""
    modes: tuple[Mode, ...] = (Mode.ASYNCHRONOUS, Mode.COLOCATED)
    colocated_switch_s: float = 15.0
    """Handing the GPUs from engines to trainer and back."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Costs:
    """What the planner reckons with, whoever measured or summed it."""

    engines: EngineLaws
    trainer: TrainerLaw
    publication_s: PublicationTime


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanningProblem:
    """Everything that a plan depends on."""

    cluster: Cluster
    model: ModelShape
    regime: Regime
    lengths: LengthTable
    costs: Costs
    rollout_degrees: tuple[int, ...] = (1, 2, 4, 8)
    train_degrees: tuple[int, ...] = (1, 2, 4, 8)
    train_shape: TrainingShape = field(default_factory=TrainingShape)
    """What every training layout has besides its degrees: recomputation, sharded optimizer, sequence parallelism."""
    micro_batch_tokens: tuple[int, ...] = (4096, 8192, 16384, 32768, 65536)
    active: Plan | None = None
    sessions: Sessions | None = None
    """What would run the answer; None where every plan counts, as in studies of planners."""
    router: RouterSkill | None = None
    """Without one, mixed fleets are not candidates: sorted intervals would assume lengths that nobody knows."""
    drift: float = 1.3
    """How far the ratio of training to rollout work may move until the next replanning round; sizes the hybrid pool."""
