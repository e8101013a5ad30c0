"""The core's side of the exchange with hybrid replicas, on one rank: what a step adds, publishes, agrees on.

Collective over the core's world: every rank holds one and calls it at the same points of a step. Hybrid ranks are in no group of
the core, so that nothing they do can raise in a collective of it. The protocol is drawn in docs/elasticity.md#protocol.

```
collect   wait for contributions (one deadline) · agree by one MIN all-reduce · add gradients and counts
          … the core's own reduction and division by the global count …
keep      copy the final gradient aside
          … the optimizer steps …
publish   results to those that follow · who is active in the next step · snapshots of the new version
```
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist
from megatron.core import parallel_state

from libra_core.elastic.agreement import Agreed, Vote, ballot, verdicts
from libra_core.elastic.buffers import Buffer
from libra_core.elastic.endpoint import CoreEndpoint, Serves, Shard
from libra_core.elastic.link import Contribution
from libra_core.elastic.spec import Address, ElasticSpec
from libra_core.elastic.wire import DType, Head, Kind
from libra_core.engines.device_clock import device_time_s
from libra_core.engines.megatron import flat
from libra_core.engines.megatron.checkpoint import fill_adam_state
from libra_core.engines.megatron.model import TrainedModel
from libra_core.engines.megatron.step import StepSums
from libra_core.engines.megatron.world import MegatronWorld

if TYPE_CHECKING:
    from libra_core.engines.megatron.accumulation import OpenStep


_CONTRIBUTION_INTS = 3
"""Loss weight, micro-batches, tokens of the share."""
_CONTRIBUTION_FLOATS = len(StepSums().portable())


@dataclass(frozen=True, slots=True, kw_only=True)
class StepExchange:
    """What became of a step's hybrid replicas; the same on every rank but for the times."""

    step: int
    counted: Mapping[int, int] = field(default_factory=dict)
    """Slot to epoch of those whose gradient is in the step."""
    dropped: tuple[int, ...] = ()
    """Slots that were active and did not contribute in time."""
    lost_sequences: tuple[int, ...] = ()
    """Numbers, in the order of accumulation, of the sequences that the dropped ones held: they are not trained yet."""
    waited_s: float = 0.0
    stall_s: float = 0.0
    """Time of the training thread in copies for publication and snapshots."""


class CoreExchange:
    """Owned by the trainer of its rank. Core data-parallel rank `slot % dp` leads a slot; with a distributed optimizer every rank
    serves its slice of the snapshot."""

    def __init__(self, spec: ElasticSpec, world: MegatronWorld, model: TrainedModel) -> None:
        """Raises `ResourceError` when the side channel's host is no address of this machine."""
        self._spec, self._world, self._model = spec, world, model
        self._pp_rank = parallel_state.get_pipeline_model_parallel_rank()
        self.active: dict[int, int] = {}
        """Slot to epoch of the replicas that take part in the step that is open or comes next; the same on every rank."""
        self.last = StepExchange(step=-1)
        self._next: dict[int, int] = {}
        self._following: dict[int, int] = {}
        self._wants: dict[int, int] = {}
        self._kept: Buffer | None = None
        self._held: dict[int, Contribution] = {}
        self._is_open = False
        self._distributed = bool(getattr(model.wrapped.ddp_config, "use_distributed_optimizer", False))
        self._items = flat.num_items(model)
        fill_adam_state(model)
        self._leads = frozenset(slot for slot in range(spec.slots) if slot % world.dp_size == world.dp_rank)
        self._serves = frozenset(range(spec.slots)) if self._distributed else self._leads
        serves = Serves(leads=self._leads, snapshots=self._serves)
        self._endpoint = CoreEndpoint(spec, self._shard(), serves) if self._serves else None

    @property
    def address(self) -> Address | None:
        """Where this rank's side channel listens."""
        return self._endpoint.address if self._endpoint else None

    @property
    def endpoint(self) -> CoreEndpoint | None:
        return self._endpoint

    @property
    def needs_whole_gradient(self) -> bool:
        """Whether somebody follows, for whom a distributed optimizer's reduction must leave more than this rank's slice."""
        return bool(self._following)

    def replica_of(self, slot: int) -> int:
        """Number of an active slot among all replicas that share the step: after the core's, in slot order."""
        return self._world.dp_size + sorted(self.active).index(slot)

    def begin(self, version: int) -> None:
        """A step is opened. If the one before was never published, this is it again.

        Contributions to the first attempt may be on their way and must never count: replicas that took part have to join anew.
        """
        if self._is_open:
            self._drop(self.active, f"step {version} is taken again")
            self.active = {}
        self._is_open = True

    def collect(self, step: "OpenStep") -> None:
        """Wait for the active replicas, agree, and add what counts to the gradients and sums of the step."""
        waited_s = self._endpoint.collect(self.active, step.version) if self._endpoint else 0.0
        self._held = self._hold(step)
        agreed = self._agree(step.version)
        counted = {slot: epoch for slot, epoch in self.active.items() if agreed[slot].contributed == epoch}
        dropped = tuple(sorted(self.active.keys() - counted.keys()))
        self._following = {slot: verdict.follows for slot, verdict in enumerate(agreed) if verdict.follows}
        self._wants = {slot: verdict.wants_snapshot for slot, verdict in enumerate(agreed) if verdict.wants_snapshot}
        self._next = {slot: verdict.stays for slot, verdict in enumerate(agreed) if verdict.stays and slot not in dropped}
        self._drop_the_broken(dropped)
        lost = sorted(number for slot in dropped for number in step.given[self.replica_of(slot)])
        step.trained = set(range(len(step.loads))) - {self.replica_of(slot) for slot in dropped}
        for slot in sorted(counted.keys() & self._held.keys()):
            self._add(self._held[slot], step)
        self._held = {}
        self.last = StepExchange(
            step=step.version, counted=counted, dropped=dropped, lost_sequences=tuple(lost), waited_s=waited_s
        )

    def keep(self) -> None:
        """Copy the reduced gradient aside, before clipping changes it in place."""
        if not self._leads & self._following.keys() or self._endpoint is None:
            return
        started = device_time_s(self._world.device)
        self._kept = self._endpoint.take_gradient_buffer()
        flat.copy_gradients(self._model, torch.frombuffer(self._kept.data, dtype=torch.float32))
        self._stalled(started)

    def publish(self, version: int, grad_norm: float, adam_steps: int) -> None:
        """After the step that made `version`: results, membership of the next step, snapshots. No gradient: it was skipped."""
        step = version - 1
        if self._endpoint is not None:
            fresh = self._next.keys() - self.active.keys()
            for slot, epoch in self._next.items():
                self._endpoint.expect(slot, epoch, version)
            check = self._checksum(version, due=bool(fresh))
            self._endpoint.publish(self._result_heads(step, grad_norm, check), self._kept)
            self._let_go()
            self._send_snapshots(version, adam_steps)
        if self._kept is not None:
            self._kept.release()
            self._kept = None
        self.active = self._next
        self._is_open = False

    def reset(self, reason: str) -> None:
        """The weights were replaced: nobody follows them any more."""
        links = self._endpoint.links() if self._endpoint else {}
        self._drop({slot: link.epoch for slot, link in links.items()}, reason)
        self.active = {}
        self._is_open = False

    def close(self) -> None:
        if self._endpoint is not None:
            self._endpoint.close()

    def _shard(self) -> Shard:
        return Shard(
            tp_rank=self._world.tp_rank,
            pp_rank=self._pp_rank,
            fingerprint=flat.fingerprint(self._model),
            gradient_items=self._items,
            snapshot_items=(1 + len(flat.MOMENTS)) * sum(piece.main.numel() for piece in flat.pieces(self._model)),
        )

    def _drop(self, epochs: Mapping[int, int], reason: str) -> None:
        for slot, epoch in epochs.items():
            if self._endpoint is not None:
                self._endpoint.fail(slot, epoch, reason)

    def _hold(self, step: "OpenStep") -> dict[int, Contribution]:
        """Complete contributions that this rank leads. Kept from here on: connections may end or be replaced while ranks agree.

        A replica must have trained what it was given, no more and no less.
        """
        held: dict[int, Contribution] = {}
        for slot in self._leads & self.active.keys() if self._endpoint else ():
            assert self._endpoint is not None
            epoch, expected = self.active[slot], step.loads[self.replica_of(slot)]
            arrived = self._endpoint.contribution(slot, epoch, step.version)
            if arrived is None:
                continue
            if len(arrived.ints) != _CONTRIBUTION_INTS or len(arrived.floats) != _CONTRIBUTION_FLOATS:
                self._endpoint.fail(slot, epoch, "its contribution has other numbers than this version of Libra sends")
            elif arrived.ints[-1] != expected:
                self._endpoint.fail(slot, epoch, f"it trained {arrived.ints[-1]} tokens instead of the {expected} it was given")
            else:
                held[slot] = arrived
        return held

    def _agree(self, step: int) -> list[Agreed]:
        votes = [self._vote(slot, step) for slot in range(self._spec.slots)]
        numbers = torch.tensor(ballot(votes), dtype=torch.int64, device=self._world.device)
        dist.all_reduce(numbers, op=dist.ReduceOp.MIN)
        return verdicts(numbers.tolist())

    def _vote(self, slot: int, step: int) -> Vote:
        vote = self._endpoint.vote(slot, step) if self._endpoint else Vote()
        return replace(vote, contributed=self.active[slot] if slot in self._held else 0) if slot in self._leads else vote

    def _drop_the_broken(self, dropped: tuple[int, ...]) -> None:
        """A replica whose contribution does not count, or of which another shard is gone, is gone as a whole."""
        if self._endpoint is None:
            return
        self._drop({slot: self.active[slot] for slot in dropped}, "its contribution was not complete on every shard")
        for slot, link in self._endpoint.links().items():
            if slot in self._leads and link.has_snapshot and self._following.get(slot) != link.epoch:
                self._endpoint.fail(slot, link.epoch, "another of its shards is gone")

    def _add(self, contribution: Contribution, step: "OpenStep") -> None:
        flat.add_gradients(self._model, torch.frombuffer(contribution.gradient, dtype=torch.float32))
        weight, micro_batches, _ = contribution.ints
        step.sums.join(contribution.floats, weight)
        step.micro_batches += micro_batches

    def _result_heads(self, step: int, grad_norm: float, check: int | None) -> dict[int, Head]:
        sizes = ((DType.FLOAT32, self._items),) if self._kept is not None else ()
        order = sorted(self._next)
        heads: dict[int, Head] = {}
        for slot in self._leads & self._following.keys():
            place = (1 + order.index(slot), len(order)) if slot in self._next else (0, len(order))
            checked = (1, check) if check is not None else (0, 0)
            heads[slot] = Head(
                kind=Kind.RESULT,
                slot=slot,
                epoch=self._following[slot],
                step=step,
                ints=(*place, *checked),
                floats=(grad_norm,),
                tensors=sizes,
            )
        return heads

    def _checksum(self, version: int, *, due: bool) -> int | None:
        """On the ranks that publish, at activations and every so many steps."""
        if not self._leads & self._following.keys() or not (due or version % self._spec.check_every_steps == 0):
            return None
        return flat.checksum(self._model)

    def _let_go(self) -> None:
        assert self._endpoint is not None
        for slot, link in self._endpoint.links().items():
            if link.leaving and slot not in self._next:
                self._endpoint.release(slot, link.epoch)

    def _send_snapshots(self, version: int, adam_steps: int) -> None:
        if not self._wants.keys() & self._serves or self._endpoint is None:
            return
        started = device_time_s(self._world.device)
        held = flat.pieces(self._model)
        buffer = self._endpoint.take_snapshot_buffer()
        flat.copy_state(held, torch.frombuffer(buffer.data, dtype=torch.float32))
        self._stalled(started)
        self._endpoint.send_snapshot(self._wants, version, (adam_steps,), flat.segments_of(held))

    def _stalled(self, started: float) -> None:
        self.last = replace(self.last, stall_s=self.last.stall_s + device_time_s(self._world.device) - started)
