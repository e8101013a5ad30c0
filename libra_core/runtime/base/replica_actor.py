"""Thin Ray actor around one rank of a hybrid replica; Megatron is imported inside the actor's process."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from libra_core.runtime.base.placement import Whereabouts, free_port, whereabouts
from libra_core.types.batch import TrainingSequence
from libra_core.types.ids import BatchId

if TYPE_CHECKING:
    from libra_core.elastic.spec import ElasticSpec, HybridSpec
    from libra_core.engines.megatron.hybrid import JoinReport
    from libra_core.engines.megatron.spec import TrainerSpec


class ReplicaActor:
    """Synchronous: one call at a time, so that a step's calls wait until a join has ended.

    The controller calls `start`, `join`, `leave`, `cut` and `close`; the flow's process calls the parts of a step, on every rank
    in the same order. Whatever fails here cuts the connection: the core is told at once, instead of waiting for a gradient.
    """

    def __init__(self, lent: Whereabouts | None) -> None:
        """`lent`: the device of a sleeping engine that this rank uses; None where it has one of its own."""
        self._lent = lent
        self._trainer: Any = None
        self._replica: Any = None

    def rendezvous(self, host: str) -> tuple[str, int]:
        """A free port of this rank's host; asked of rank 0 only."""
        return free_port(host)

    def host(self, loopback: bool) -> str:
        import ray

        return "127.0.0.1" if loopback else ray.util.get_node_ip_address()

    def whereabouts(self) -> Whereabouts:
        return whereabouts(self._lent)

    def start(self, spec: "TrainerSpec", elastic: "ElasticSpec", hybrid: "HybridSpec") -> None:
        """Build the replica's own world; it holds the start weights until it joins."""
        from libra_core.engines.megatron.hybrid import HybridReplica
        from libra_core.engines.megatron.trainer import MegatronTrainer

        self._trainer = MegatronTrainer(spec)
        self._replica = HybridReplica(self._trainer, elastic, hybrid)

    def join(self, epoch: int, deadline_s: float) -> "JoinReport":
        return self._replica.join(epoch, deadline_s=deadline_s)

    def begin_step(self, batch_id: BatchId) -> None:
        self._guarded(lambda: self._replica.begin_step(batch_id))

    def accumulate(self, sequences: tuple[TrainingSequence, ...]) -> None:
        self._guarded(lambda: self._replica.accumulate(sequences))

    def finish_step(self, deadline_s: float) -> None:
        """Contribute, then apply what the core made of the step."""

        def finish() -> None:
            self._replica.contribute()
            self._replica.follow(deadline_s=deadline_s)

        self._guarded(finish)

    def leave(self) -> None:
        """Ask to be left out of the steps after the one in work."""
        self._replica.leave()

    def cut(self) -> None:
        """Leave without asking."""
        self._replica.close()

    def digest(self) -> str:
        return self._trainer.digest()

    def close(self) -> None:
        if self._replica is not None:
            self._replica.close()
        if self._trainer is not None:
            self._trainer.close()

    def _guarded(self, work: Callable[[], object]) -> None:
        try:
            work()
        except Exception:
            self._replica.close()
            raise
