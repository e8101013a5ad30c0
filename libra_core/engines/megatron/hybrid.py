"""A hybrid replica that trains: one rank of a Megatron world of its own, with the core's tensor- and pipeline-parallel shape.

It holds what the core holds by taking a snapshot and applying every published gradient to it with its own optimizer. Catching up
and taking part are the same code, so that the weights stay bit-equal; a checksum from the core says when they do not.
"""

from dataclasses import dataclass, replace
from time import monotonic

import torch
import torch.distributed as dist

from libra_core.elastic.endpoint import Shard
from libra_core.elastic.follower import Follower, Received
from libra_core.elastic.handshake import Hello
from libra_core.elastic.spec import ElasticSpec, HybridSpec
from libra_core.elastic.wire import Kind
from libra_core.engines.device_clock import device_time_s
from libra_core.engines.megatron import checkpoint, flat
from libra_core.engines.megatron.accumulation import OpenStep
from libra_core.engines.megatron.model import learning_rate
from libra_core.engines.megatron.trainer import MegatronTrainer
from libra_core.errors import ConfigError, DeadlineError, ElasticError, TrainerLostError
from libra_core.types.batch import AccumulationReport, TrainingSequence
from libra_core.types.ids import BatchId, PolicyVersion


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Standing in the next step."""

    active: bool
    replica: int
    """Number among all that share the step, the core's first."""
    replicas: int


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinReport:
    """How a join went; of the rank that answers."""

    snapshot_version: int
    active_from: int
    """First step that it takes part in."""
    replayed: int
    connect_s: float
    snapshot_s: float
    """From the connection until the snapshot is restored; the core takes it at the end of its step."""
    replay_s: float
    """Until the core has activated it."""


class HybridReplica:
    """Every public method but `leave` and `close` is collective over the replica's own ranks, and is called in this order:

    `join`, then for each step `begin_step`, any number of `accumulate`, `contribute`, `follow`. After an `ElasticError` the
    replica is no member any more, on all its ranks; it may `join` again, with a later epoch.
    """

    def __init__(self, trainer: MegatronTrainer, elastic: ElasticSpec, hybrid: HybridSpec) -> None:
        """Takes the trainer over.

        Raises:
            ConfigError: the trainer's layout is not that of one replica.
        """
        layout = trainer.spec.training.layout
        if layout.dp != 1 or layout.distributed_optimizer:
            raise ConfigError(
                f"a hybrid replica is one data-parallel replica with a whole optimizer, but its layout has dp {layout.dp}"
                f"{' and a distributed optimizer' if layout.distributed_optimizer else ''}; "
                "take the core's layout with dp 1 and distributed_optimizer off"
            )
        self._trainer, self._elastic, self._hybrid = trainer, elastic, hybrid
        checkpoint.fill_adam_state(trainer.model)
        self._pieces = flat.pieces(trainer.model)
        items = flat.num_items(trainer.model)
        self._outgoing = bytearray(4 * items)
        self._shard = Shard(
            tp_rank=trainer.world.tp_rank,
            pp_rank=trainer.world.rank // (layout.tp * layout.dp),
            fingerprint=flat.fingerprint(trainer.model),
            gradient_items=items,
            snapshot_items=(1 + len(flat.MOMENTS)) * items,
        )
        self._follower: Follower | None = None
        self._step: OpenStep | None = None
        self.place = Place(active=False, replica=0, replicas=0)

    @property
    def version(self) -> PolicyVersion:
        return self._trainer.policy_version

    def join(self, epoch: int, deadline_s: float) -> JoinReport:
        """Connect, restore a snapshot, replay what was published since, and return once the core counts on this replica.

        Raises:
            ElasticError: the core refused, died or dropped the replica, or another rank of it did not get as far.
            DeadlineError: it took longer.
        """
        self.close()
        self._trainer.discard_step()
        self._step = None
        started = device_time_s(self._trainer.world.device)
        try:
            report = self._join(epoch, started, started + deadline_s)
        except (ElasticError, DeadlineError):
            self.close()  # else the core could activate it, and would wait for what it never sends
            self._agree(ready=False)
            raise
        self._agree(ready=True)
        return report

    def begin_step(self, batch_id: BatchId) -> None:
        """Open the step of the version that is held.

        Raises:
            ConfigError: the replica is not active.
        """
        if not self.place.active:
            raise ConfigError(f"hybrid replica {self._hybrid.slot} is not active; it joins first")
        place = self.place.replica, self.place.replicas
        self._step = self._trainer.accumulator.open(batch_id, self.version, place)

    def accumulate(self, sequences: tuple[TrainingSequence, ...]) -> AccumulationReport:
        """Its share of the same part of the batch that the core is given."""
        assert self._step is not None, "begin_step comes first"
        return self._trainer.accumulator.add(self._step, sequences)

    def contribute(self) -> None:
        """Send the raw sums; only the core knows whether they will count. A core that is gone is seen by `follow`."""
        assert self._step is not None, "begin_step comes first"
        assert self._follower is not None
        step = self._step
        flat.copy_gradients(self._trainer.model, torch.frombuffer(self._outgoing, dtype=torch.float32))
        ints = (step.sums.weight, step.micro_batches, step.loads[step.replica])
        try:
            self._follower.contribute(step.version, ints, step.sums.portable(), memoryview(self._outgoing))
        except ElasticError as error:
            self._follower.close(str(error))

    def follow(self, *, deadline_s: float) -> Place:
        """Wait for the step's result, apply it, and tell the standing in the next step.

        Raises:
            ElasticError: this replica is out: dropped, refused, left by the core, or different from it.
        """
        try:
            self._advance(monotonic() + deadline_s)
        except (ElasticError, DeadlineError) as error:
            self.close()
            self._agree(ready=False)
            raise ElasticError(str(error)) from error
        finally:
            self._step = None
        self._agree(ready=True)
        return self.place

    def leave(self) -> None:
        """Ask to be left out after the step in work; `follow` then answers a place that is not active."""
        if self._follower is not None:
            self._follower.leave(self.version)

    def close(self) -> None:
        """Cut the connection; the trainer stays."""
        if self._follower is not None:
            self._follower.close()
        self._follower = None
        self.place = Place(active=False, replica=0, replicas=0)

    def _join(self, epoch: int, started: float, end_s: float) -> JoinReport:
        hello = Hello(
            slot=self._hybrid.slot,
            epoch=epoch,
            tp_rank=self._shard.tp_rank,
            pp_rank=self._shard.pp_rank,
            fingerprint=self._shard.fingerprint,
        )
        device, addresses = self._trainer.world.device, self._hybrid.endpoints[self._trainer.world.rank]
        self._follower = Follower(self._elastic, self._shard, hello, addresses)
        connected = device_time_s(device)
        self._restore(self._follower.snapshot(deadline_s=max(0.0, end_s - connected)))
        restored, snapshot_version = device_time_s(device), int(self.version)
        self._follower.progress(self.version)
        while not self.place.active:
            self._advance(end_s)
        return JoinReport(
            snapshot_version=snapshot_version,
            active_from=int(self.version),
            replayed=int(self.version) - snapshot_version,
            connect_s=connected - started,
            snapshot_s=restored - connected,
            replay_s=device_time_s(device) - restored,
        )

    def _restore(self, parts: list[Received]) -> None:
        model = self._trainer.model
        items = sum(
            flat.restore_state(self._pieces, part.tensors[0], torch.frombuffer(part.tensors[1], dtype=torch.float32))
            for part in parts
        )
        if items != self._shard.gradient_items:
            raise ElasticError(f"the snapshot holds {items} of {self._shard.gradient_items} items of this shard")
        flat.spread_masters(model)
        (adam_steps,) = parts[0].head.ints
        checkpoint.set_adam_steps(model, adam_steps)
        self._trainer.progress = checkpoint.PolicyProgress(version=PolicyVersion(parts[0].head.step), adam_steps=adam_steps)

    def _advance(self, end_s: float) -> None:
        """Apply the next result. Older ones, of steps that the snapshot holds already, are passed over."""
        assert self._follower is not None
        received = self._follower.receive(deadline_s=max(0.0, end_s - monotonic()))
        head = received.head
        try:
            if head.kind is Kind.BYE:
                raise ElasticError("the core let this replica go")
            if head.kind is not Kind.RESULT or head.step > self.version:
                raise ElasticError(f"expected the result of step {self.version}, got {head.kind.name.lower()} of {head.step}")
            if head.step < self.version:
                return
            self._apply(received)
        finally:
            received.release()
        self._follower.progress(self.version)

    def _apply(self, received: Received) -> None:
        trainer, (number, active, has_check, check) = self._trainer, received.head.ints
        if received.tensors:
            trainer.accumulator.open(BatchId("result"), self.version, (0, 1))
            flat.set_gradients(trainer.model, torch.frombuffer(received.tensors[0], dtype=torch.float32))
            rate = learning_rate(trainer.spec.training.optimizer, self.version)
            for group in trainer.model.optimizer.param_groups:
                group["lr"] = rate
            flat.step_with_norm(trainer.model.optimizer, received.head.floats[0])
        progress = trainer.progress
        trainer.progress = replace(
            progress, version=PolicyVersion(progress.version + 1), adam_steps=progress.adam_steps + bool(received.tensors)
        )
        if has_check and flat.checksum(trainer.model) != check:
            raise ElasticError(f"its weights differ from the core's at version {self.version}; it needs a fresh snapshot")
        core = self._hybrid.core_dp
        self.place = Place(active=number > 0, replica=core + number - 1, replicas=core + active)

    def _agree(self, *, ready: bool) -> None:
        """All ranks of the replica or none: a shard alone can do nothing.

        Raises:
            ElasticError: another rank is not ready.
            TrainerLostError: another rank died; this world is void.
        """
        word = torch.tensor([int(ready), int(self.place.active), int(self.version)], device=self._trainer.world.device)
        least, most = word.clone(), word.clone()
        try:
            dist.all_reduce(least, op=dist.ReduceOp.MIN)
            dist.all_reduce(most, op=dist.ReduceOp.MAX)
        except RuntimeError as error:
            self.close()
            raise TrainerLostError(
                f"a rank of hybrid replica {self._hybrid.slot} died ({str(error).splitlines()[0]}); start the replica anew"
            ) from error
        if ready and (least[0] == 0 or not torch.equal(least, most)):
            self.close()
            raise ElasticError("another rank of this replica is out, or stands elsewhere; the replica joins anew")
