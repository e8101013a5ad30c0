"""What runs now. Config is what was asked for; a plan is replaced, never edited."""

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainLayout:
    """Parallelism of the core training world; `tp·cp·pp·dp` devices."""

    tp: int = 1
    pp: int = 1
    dp: int = 1
    cp: int = 1
    ep: int = 1
    """Expert parallelism; it shares the devices of the other dimensions."""
    micro_batch_tokens: int = 4096

    @property
    def num_gpus(self) -> int:
        return self.replica_gpus * self.dp

    @property
    def replica_gpus(self) -> int:
        """Devices of one data-parallel replica."""
        return self.tp * self.cp * self.pp


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutLayout:
    """Engines by tensor-parallel degree, as `((tp, number of engines), …)`."""

    engines: tuple[tuple[int, int], ...]

    @classmethod
    def of(cls, groups: Iterable[tuple[int, int]]) -> "RolloutLayout":
        """From groups of which several may have one degree: `(1, 2), (2, 1), (1, 1)` are `((1, 3), (2, 1))`."""
        engines: dict[int, int] = {}
        for tp, count in groups:
            engines[tp] = engines.get(tp, 0) + count
        return cls(engines=tuple(engines.items()))

    @property
    def num_engines(self) -> int:
        return sum(count for _, count in self.engines)

    @property
    def num_gpus(self) -> int:
        return sum(tp * count for tp, count in self.engines)

    @property
    def degrees(self) -> tuple[int, ...]:
        """One tensor-parallel degree per engine, in the order of engine numbers."""
        return tuple(tp for tp, count in self.engines for _ in range(count))


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The active division of the GPUs.

    Two replicas of two GPUs train; two engines of one GPU and one of four generate, and one of the small ones may change sides:

    >>> plan = Plan(train=TrainLayout(tp=2, dp=2), rollout=RolloutLayout(engines=((1, 2), (4, 1))), hybrid_replicas=1)
    >>> plan.num_gpus, plan.rollout.degrees
    (10, (1, 1, 4))
    """

    train: TrainLayout
    rollout: RolloutLayout
    hybrid_replicas: int = 0
    """Replica-sized sets of rollout GPUs that may join training without a rebuild; counted in `rollout`."""
    hybrids_training: int = 0
    """How many of them are away from `rollout` and train."""

    @property
    def num_gpus(self) -> int:
        """In colocated mode both sides share devices and the larger one counts; see `Candidate.mode`."""
        return self.train.num_gpus + self.rollout.num_gpus
