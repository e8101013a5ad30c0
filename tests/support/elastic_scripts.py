"""What the processes of an elastic run do: core ranks, hybrid ranks with faults on order, and the reference that has neither.

The processes meet in a folder: addresses of the side channel, the samples of each step.
"""

import json
import os
import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random
from typing import Any

from libra_core.elastic.spec import HybridSpec, shard_endpoints
from libra_core.elastic.wire import DType, Head, Kind
from libra_core.engines.megatron.spec import TrainerSpec
from libra_core.errors import LibraError
from libra_core.types.batch import TrainingSequence
from libra_core.types.ids import BatchId, PolicyVersion
from support.sample_book import CORE, Lease, SampleBook

SECRET = b"elastic-test-secret-elastic-test"
LENGTHS = (190, 150, 52)
"""Tokens of the samples by number modulo 3: shared over three replicas they give loss tokens like 150, 120 and 40."""
SAMPLES_PER_STEP = 3
_WAIT_S = 120.0


def sample(number: int) -> TrainingSequence:
    """Those of every fifth step have no advantage: without an entropy term there is nothing to learn from them."""
    random = Random(number)
    length = LENGTHS[number % len(LENGTHS)]
    mask = tuple(int(position >= 4 and random.random() > 0.2) for position in range(length))
    return TrainingSequence(
        token_ids=tuple(random.randrange(512) for _ in range(length)),
        loss_mask=mask,
        logprobs=tuple(random.gauss(-9.0, 2.0) if trained else 0.0 for trained in mask),
        advantage=0.0 if number % 15 >= 12 else random.gauss(0.0, 1.0),
        group_index=number,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """What a hybrid rank does to itself in its n-th contribution."""

    at: int
    kind: str
    """kill, stop, half then kill, half then hang, other epoch, other step, twice, hang, other share, other version."""
    rank: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class HybridScript:
    slot: int = 0
    join_at: int = 2
    """The core holds before it finishes this step until the replica is connected."""
    contributions: int = 100
    """Then it asks to leave."""
    faults: tuple[Fault, ...] = ()
    restore_at: int | None = None
    """It does not get its snapshot before the core is at this step."""
    secret: bytes = SECRET
    corrupt_at: int | None = None
    """Change one weight after so many contributions."""
    rejoin: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class CoreScript:
    steps: int = 12
    patient_from: int = 0
    """From this step on, hold each until replicas that replay have caught up, so that every run has the same membership."""
    retrain: bool = False
    """What a lost replica held is trained by the core in the same step."""
    discard_at: int | None = None
    """Throw this step away when it is all accumulated, and take it again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepRecord:
    """One finished step, as core rank 0 saw it."""

    counted: tuple[int, ...]
    """Slots whose gradients are in it."""
    dropped: tuple[int, ...]
    given: tuple[tuple[int, ...], ...]
    """Sample numbers by replica, core first, then the active slots in order."""
    active: tuple[int, ...]
    loss_tokens: int
    tokens: int
    loss: float
    skipped: bool
    digest: str
    waited_s: float
    """The longest wait of any rank is not known to rank 0; this is its own."""


# ---- in the core's processes ----


def core_rank(spec: TrainerSpec, folder: str, script: CoreScript, hybrids: tuple[HybridScript, ...]) -> dict[str, Any]:
    from libra_core.engines.megatron.convert import export_hf
    from libra_core.engines.megatron.trainer import MegatronTrainer

    trainer = MegatronTrainer(spec)
    assert trainer.exchange is not None
    _write(Path(folder) / f"core-{spec.rank}.json", trainer.exchange.address)
    book, records, waits = SampleBook(), [], []
    for step in range(script.steps):
        records.append(_core_step(trainer, step, (book, folder, script, hybrids)))
        waits.append(trainer.exchange.last.waited_s)
    weights = {name: tensor.float().cpu().numpy().copy() for name, tensor in export_hf(trainer.model.module, trainer.facts)}
    (Path(folder) / "end").touch()
    endpoint = trainer.exchange.endpoint
    links = endpoint.links() if endpoint else {}
    answer = {
        "records": records,
        "book": book,
        "weights": weights,
        "waits": waits,
        "closed": {slot: link.closed for slot, link in links.items()},
        "refused": list(endpoint.refused) if endpoint else [],
    }
    trainer.close()
    return answer


def _core_step(trainer: Any, step: int, run: tuple[SampleBook, str, CoreScript, tuple[HybridScript, ...]]) -> StepRecord:
    book, folder, script, hybrids = run
    exchange, world = trainer.exchange, trainer.world
    book.add(range(SAMPLES_PER_STEP * (step + 1)))
    numbers = tuple(book.waiting[:SAMPLES_PER_STEP])
    if world.rank == 0:
        _write(Path(folder) / f"step-{step}.json", numbers)
    if step == script.discard_at:
        _accumulate(trainer, step, numbers)
        trainer.discard_step()
    _accumulate(trainer, step, numbers)
    active = dict(exchange.active)
    given = tuple(tuple(numbers[index] for index in indices) for indices in trainer._step.given)
    for replica, samples in enumerate(given):
        slot = CORE if replica < world.dp_size else sorted(active)[replica - world.dp_size]
        book.lease(samples, Lease(step=step, slot=slot, epoch=active.get(slot, 0)))
    _hold(exchange, step, script, hybrids)
    if script.retrain and trainer.resolve_step():
        given = _train_again(trainer, step, book, numbers)
    report = trainer.finish_step()
    last = exchange.last
    back = book.resolve(step, last.counted)
    assert sorted(back) == ([] if script.retrain else sorted(numbers[index] for index in last.lost_sequences))
    return StepRecord(
        counted=tuple(sorted(last.counted)),
        dropped=last.dropped,
        given=given,
        active=tuple(sorted(active)),
        loss_tokens=report.loss_tokens,
        tokens=report.tokens,
        loss=report.loss,
        skipped=report.skipped,
        digest=trainer.digest(),
        waited_s=last.waited_s,
    )


def _train_again(trainer: Any, step: int, book: SampleBook, numbers: tuple[int, ...]) -> tuple[tuple[int, ...], ...]:
    """Shares of the step after the core has taken what the lost replicas held."""
    last = trainer.exchange.last
    lost = [numbers[index] for index in last.lost_sequences]
    for number in lost:
        trainer.accumulate((sample(number),))
    back = [number for slot in last.dropped for number in book.take_back(step, slot)]
    assert sorted(back) == sorted(lost)
    book.lease(back, Lease(step=step, slot=CORE))
    fed = (*numbers, *lost)
    return tuple(tuple(fed[index] for index in indices) for indices in trainer._step.given)


def _accumulate(trainer: Any, step: int, numbers: tuple[int, ...]) -> None:
    assert trainer.begin_step(BatchId(f"step-{step:06d}"), PolicyVersion(step)) is None
    for number in numbers:
        trainer.accumulate((sample(number),))


def _hold(exchange: Any, step: int, script: CoreScript, hybrids: tuple[HybridScript, ...]) -> None:
    """Ranks that hold a replica's connection wait for it; the others wait for them in the next collective."""
    endpoint = exchange.endpoint
    if endpoint is None:
        return
    serves = endpoint._serves
    for hybrid in hybrids:
        if hybrid.slot in serves.leads | serves.snapshots and step >= hybrid.join_at:
            _hold_for(hybrid, endpoint, step, patient=step >= script.patient_from)


def _hold_for(hybrid: HybridScript, endpoint: Any, step: int, *, patient: bool) -> None:
    if hybrid.secret != SECRET:
        _wait(lambda: len(endpoint.refused) > 0, "a stranger to be refused")
        return
    _wait(lambda: _connected(endpoint, hybrid, step), f"slot {hybrid.slot} to connect")
    if patient:
        _wait(lambda: _caught_up(endpoint, hybrid.slot, step), f"slot {hybrid.slot} to catch up")


def _connected(endpoint: Any, hybrid: HybridScript, step: int) -> bool:
    """At the step in which it joins; a replica that joins again is waited for in each step."""
    link = endpoint.links().get(hybrid.slot)
    if step == hybrid.join_at:
        return link is not None
    return not hybrid.rejoin or (link is not None and link.closed is None)


def _caught_up(endpoint: Any, slot: int, step: int) -> bool:
    link = endpoint.links().get(slot)
    return link is None or link.closed is not None or not link.has_snapshot or link.progress >= step


# ---- in a hybrid replica's processes ----


def hybrid_rank(spec: TrainerSpec, folder: str, script: HybridScript, core: TrainerSpec) -> dict[str, Any]:
    from libra_core.engines.megatron.hybrid import HybridReplica
    from libra_core.engines.megatron.trainer import MegatronTrainer

    trainer = MegatronTrainer(spec)
    layout, elastic = core.training.layout, core.elastic
    assert elastic is not None
    addresses = [_read(Path(folder) / f"core-{rank}.json") for rank in range(core.world_size)]
    endpoints = shard_endpoints(
        [tuple(address) if address else None for address in addresses],
        slot=script.slot,
        model_parallel=(layout.tp, layout.pp),
        distributed_optimizer=layout.distributed_optimizer,
    )
    hybrid = HybridSpec(slot=script.slot, core_dp=layout.dp, endpoints=endpoints)
    replica = HybridReplica(trainer, replace(elastic, secret=script.secret), hybrid)
    _read(Path(folder) / f"step-{script.join_at}.json")
    answer: dict[str, Any] = {"joins": [], "errors": [], "contributions": 0}
    epoch = 0
    while epoch == 0 or (script.rejoin and epoch < 3 and answer["errors"]):
        epoch += 1
        try:
            _live(replica, trainer, (folder, script, epoch), answer)
        except LibraError as error:
            answer["errors"].append(str(error))
        else:
            break
    answer["version"] = int(replica.version)
    answer["digest"] = trainer.digest()
    replica.close()
    trainer.close()
    return answer


def _live(replica: Any, trainer: Any, run: tuple[str, HybridScript, int], answer: dict[str, Any]) -> None:
    folder, script, epoch = run
    if script.restore_at is not None:
        _delay_snapshot(replica, Path(folder) / f"step-{script.restore_at}.json")
    answer["joins"].append(replica.join(epoch, deadline_s=_WAIT_S))
    while replica.place.active:
        step = int(replica.version)
        replica.begin_step(BatchId(f"step-{step:06d}"))
        path = Path(folder) / f"step-{step}.json"
        _wait(lambda path=path: path.exists() or (Path(folder) / "end").exists(), f"{path.name} or the end")
        if not path.exists():
            return
        for number in _read(path):
            replica.accumulate((sample(number),))
        answer["contributions"] += 1
        if answer["contributions"] == script.contributions:
            replica.leave()
        if not _misbehave(replica, trainer, script, answer["contributions"]):
            replica.contribute()
        replica.follow(deadline_s=_WAIT_S)
        if script.corrupt_at == answer["contributions"]:
            next(trainer.model.module.parameters()).data.view(-1)[0] += 1.0


def _delay_snapshot(replica: Any, until: Path) -> None:
    restore = replica._restore

    def late(parts: Any) -> None:
        _read(until)
        restore(parts)

    replica._restore = late


def _misbehave(replica: Any, trainer: Any, script: HybridScript, contribution: int) -> bool:
    """Whether the fault took the place of the contribution."""
    fault = next((fault for fault in script.faults if fault.at == contribution and fault.rank == trainer.world.rank), None)
    if fault is None:
        return False
    follower, step = replica._follower, replica._step
    items = replica._shard.gradient_items
    sizes = ((DType.FLOAT32, items),)
    hello = follower._hello
    head = Head(
        kind=Kind.CONTRIBUTION,
        slot=hello.slot,
        epoch=hello.epoch,
        step=step.version,
        ints=(1, 1, 1),
        floats=() if fault.kind == "other version" else (0.0,) * 7,
        tensors=sizes,
    )
    if fault.kind.startswith("half"):
        follower._leader._outgoing.sendall(head.encode() + bytes(2 * items))
    if fault.kind.endswith("kill"):
        os.kill(os.getpid(), signal.SIGKILL)
    if fault.kind == "stop":
        os.kill(os.getpid(), signal.SIGSTOP)
    junk = memoryview(bytes(4 * items))
    if fault.kind == "other epoch":
        follower._leader.send(replace(head, epoch=hello.epoch + 7), (junk,))
    if fault.kind == "other step":
        follower._leader.send(replace(head, step=step.version + 1), (junk,))
        follower._leader.send(replace(head, step=step.version - 1), (junk,))
    if fault.kind == "twice":
        replica.contribute()
        follower._leader.send(head, (junk,))
        return True
    if fault.kind in {"other share", "other version"}:
        follower._leader.send(head, (junk,))
        return True
    return fault.kind.endswith("hang")


# ---- one replica that computes what all of them should have ----


def reference_rank(spec: TrainerSpec, dp: int, records: Sequence[StepRecord]) -> dict[str, Any]:
    """Each replica's raw gradient apart, added in the core's order, divided by the count of those that count, applied once."""
    import torch

    from libra_core.engines.megatron import flat
    from libra_core.engines.megatron.convert import export_hf
    from libra_core.engines.megatron.model import learning_rate
    from libra_core.engines.megatron.trainer import MegatronTrainer

    trainer = MegatronTrainer(spec)
    accumulator, model = trainer.accumulator, trainer.model
    items = flat.num_items(model)
    digests, off = [], []
    for number, record in enumerate(records):
        raw: list[Any] = []
        weights: list[int] = []
        for samples in record.given:
            step = accumulator.open(BatchId("share"), PolicyVersion(number), (0, 1))
            for one in samples:
                accumulator.add(step, (sample(one),))
            gradient = torch.empty(items)
            flat.copy_gradients(model, gradient)
            raw.append(gradient)
            weights.append(step.sums.weight)
        hybrids = {slot: dp + place for place, slot in enumerate(record.active)}
        counts = [*range(dp), *(hybrids[slot] for slot in record.counted)]
        total = None
        for rank in range(dp):
            mine = raw[rank].clone()
            for slot in record.counted:
                mine += raw[hybrids[slot]] if slot % dp == rank else 0.0
            total = mine if total is None else total + mine
        assert total is not None
        if record.counted and spec.world_size == 1:
            means = sum(raw[replica] / weights[replica] for replica in counts) / len(counts)
            right = total / sum(weights[replica] for replica in counts)
            off.append(float((means - right).norm() / right.norm()))
        step = accumulator.open(BatchId("sum"), PolicyVersion(number), (0, 1))
        step.signals[0] = not record.skipped
        step.sums.weight = sum(weights[replica] for replica in counts)
        flat.set_gradients(model, total)
        accumulator.finish(step, learning_rate=learning_rate(spec.training.optimizer, number))
        digests.append(trainer.digest())
    exported = {name: tensor.float().cpu().numpy().copy() for name, tensor in export_hf(model.module, trainer.facts)}
    trainer.close()
    return {"digests": digests, "weights": exported, "mean_of_means_error": off}


def _write(path: Path, value: Any) -> None:
    part = path.with_suffix(".part")
    part.write_text(json.dumps(value))
    part.rename(path)


def _read(path: Path) -> Any:
    _wait(path.exists, f"{path.name} to appear")
    return json.loads(path.read_text())


def _wait(condition: Callable[[], bool], what: str) -> None:
    end_s = time.monotonic() + _WAIT_S
    while not condition():
        assert time.monotonic() < end_s, f"waited {_WAIT_S:.0f} s for {what}"
        time.sleep(0.005)
