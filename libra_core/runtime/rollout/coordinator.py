"""Rollout coordinator: starts groups within the staleness bound and runs their agent loops on the fleet."""

import asyncio
import itertools
import logging
import time
from collections import deque
from collections.abc import Generator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from libra_core.config import LibraConfig
from libra_core.config.rollout import RolloutConfig
from libra_core.errors import DeadlineError
from libra_core.runtime.base.actors import StartedEngine
from libra_core.runtime.base.background import BackgroundTasks
from libra_core.runtime.base.rpc import CALL_DEADLINE_S, GRACE_S, ActorHandle, reply
from libra_core.runtime.base.time_breakdown import BusyClock, Interval
from libra_core.runtime.rollout.admission import AdmissionState, IssuedPrompt, PromptCursor, PromptQueue, groups_to_issue
from libra_core.runtime.rollout.agent_loop import AgentTools
from libra_core.runtime.rollout.fleet_manager import FleetManager, Handover
from libra_core.runtime.rollout.group_runner import GroupRunner, GroupVerdict, LostGroups, is_unanswerable
from libra_core.runtime.rollout.kv_moves import offers_of, stay
from libra_core.runtime.rollout.router import open_router
from libra_core.runtime.rollout.scorer import patience_s
from libra_core.runtime.rollout.weights import PublicationOrder, Published
from libra_core.types.group import TrajectoryGroup
from libra_core.types.ids import EngineId, PolicyVersion
from libra_core.types.reports import EngineStats, RoutingReport
from libra_core.types.trace import TraceSpan
from libra_core.types.trajectory import Failure, FailureKind, Prompt, Trajectory
from libra_core.workloads.build import build_workload

logger = logging.getLogger(__name__)

_KEEP_SPANS = 50_000
_STOP_S = 20.0
_REPORTED_WAITS = 8
_NAME = "the rollout coordinator"


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutState:
    """For whoever waits for a batch: what runs where, and whether something broke for good."""

    fault: str | None
    """What broke in this process or in the controller; nothing mends it."""
    lost: str | None
    """Why no further groups are started: too many were lost in a row."""
    failure: str | None
    """Why no engine will come."""
    version: PolicyVersion
    engines: Mapping[EngineId, int]
    """Trajectories bound to each."""
    waiting_for_weights: bool
    """The only engines serve after another publication."""
    expects_engines: bool
    """The fleet is changed on purpose."""
    running_groups: tuple[int, ...]
    waits: tuple[str, ...]
    """The longest ones, as sentences."""
    queued: int
    """Turns without a place."""


class RolloutCoordinatorActor:
    """Owns the running groups and the version they start with. An async actor: one event loop.

    Consumes: prompts. Waits for: the trainer's next version when the staleness bound is reached. Unblocked by: `publish`, and
    by groups written off. Shut down by `stop`: admission first, then agent loops, then tool threads.
    """

    def __init__(
        self, config: LibraConfig, model_folder: str, cursor: PromptCursor, version: PolicyVersion, run_dir: str
    ) -> None:
        self._config = config
        self._router = open_router(config, model_folder, Path(run_dir))
        workload = build_workload(config, Path(model_folder))
        for note in workload.prompts.census():
            logger.warning("%s", note)
        self._vocabulary, self._cut_mark = workload.vocabulary, workload.cut_mark
        self._environment = workload.environment
        self._prompts = workload.prompts
        self._queue = PromptQueue(cursor)
        self._version = version
        self._issued = version * config.rollout.groups_per_step
        self._written_off = 0
        self._lost = LostGroups(config.rollout.max_lost_groups)
        self._busy = BusyClock()
        self._spans: deque[TraceSpan] = deque(maxlen=_KEEP_SPANS)
        self._threads = ThreadPoolExecutor(config.rollout.tool_threads, thread_name_prefix="tool")
        self._running: set[int] = set()
        self._tasks = BackgroundTasks(_NAME)
        self._wake = asyncio.Event()
        self._board = WaitBoard()
        self._fault: str | None = None
        """Of the cluster controller."""

    async def attach(
        self, store: ActorHandle, scorer: ActorHandle, controller: ActorHandle, engines: list[StartedEngine]
    ) -> None:
        """Take over the engines; groups start with `begin`. Tools that block run in the loop's default threads."""
        asyncio.get_running_loop().set_default_executor(self._threads)
        self._store, self._scorer = store, scorer
        self._manager = FleetManager(self._config, controller, self._tasks.spawn, self._record, self._router)
        self._manager.start_with(engines)
        self._tools = AgentTools(
            environment=self._environment,
            bind=self._manager.fleet.bind,
            foresee=self._manager.fleet.foresee if self._config.routing.prefill_ahead else stay,
            watch=self._router,
            generate=self._manager.fleet.generate,
            release=self._manager.fleet.release,
            record=self._record,
            waiting=self._board.waiting,
            offer=offers_of(self._config.rollout, self._manager.fleet),
            vocabulary=self._vocabulary,
            cut_mark=self._cut_mark,
        )

    async def begin(self) -> None:
        """Issue groups from here on."""
        self._tasks.spawn(self._admit())

    async def publish(self, order: PublicationOrder, canary: tuple[int, ...], token: int) -> Published:
        """Swap the weights of every engine, then let each score the canary. New groups start at the new version."""
        started_s = time.monotonic()
        try:
            engines = await self._manager.publish(order)
            # Only now: a group that started before would carry a version that none of its tokens is of.
            self._version = order.version
            self._wake.set()
            self._tasks.spawn(self._router.save())
            scores = await self._manager.canary(canary) if canary else {}
        finally:
            self._manager.end_publication(token)
        return Published(engines=tuple(engines), scores=scores, seconds=time.monotonic() - started_s)

    async def hold(self) -> None:
        """Stop generation on every engine until the next publication; unfinished requests keep what they have."""
        await self._manager.hold()

    async def begin_publication(self, token: int, wait_s: float) -> bool:
        """False: the engines that are expected have not come within `wait_s`; ask again."""
        return await self._manager.begin_publication(token, wait_s)

    async def end_publication(self, token: int) -> None:
        """Of one that was begun and sends no order: engines may leave again."""
        self._manager.end_publication(token)

    async def expect_engines(self, degrees: tuple[int, ...], within_s: float) -> None:
        """The fleet changes for so long; afterwards, with 0 s, it has engines of these degrees."""
        self._manager.expect(degrees, within_s)

    async def note_failure(self, sentence: str) -> None:
        """Why engines of the plan do not serve; a step that waits without any ends with it. Empty: all do."""
        self._manager.failure = sentence or None

    async def note_fault(self, sentence: str) -> None:
        """The cluster controller failed at something that it cannot make good; a step that waits ends with it."""
        self._fault = self._fault or f"the cluster controller failed: {sentence}"

    async def retire_engine(self, engine_id: EngineId, deadline_s: float) -> Handover:
        """Its trajectories go on on the other engines."""
        return await self._manager.retire(engine_id, deadline_s)

    async def admit_engine(self, engine: StartedEngine) -> None:
        """With the newest weights."""
        await self._manager.admit(engine, await self.canary_tokens())

    async def open_broadcast(self, host: str, port: int, world_size: int, timeout_s: float) -> None:
        await self._manager.round.open(host, port, world_size, timeout_s)

    async def form_broadcast(self) -> dict[EngineId, int]:
        """Engines of the next broadcast that live, and their degrees."""
        return await self._manager.round.form(self._manager.members())

    async def end_broadcast(self, *, whole: bool) -> None:
        """Whether the trainer has sent all of it; else it is sent again."""
        self._manager.round.end(whole=whole)

    async def canary_tokens(self) -> tuple[int, ...]:
        return next(iter(self._prompts.training(0))).token_ids

    async def evaluate_heldout(self, count: int) -> list[tuple[Prompt, Trajectory]]:
        """One sample of each held-out prompt under the current weights."""
        single = self._config.rollout.model_copy(update={"group_size": 1, "on_failed_group": "drop"})
        runner = self._runner(single)
        prompts = self._prompts.heldout(count)
        runs = await asyncio.gather(*(runner.run(i, prompt, self._version) for i, prompt in enumerate(prompts)))
        return [(prompt, group.trajectories[0]) for prompt, (group, _) in zip(prompts, runs, strict=True)]

    async def stats(self) -> list[EngineStats]:
        return await self._manager.stats()

    async def busy_intervals(self, since_s: float) -> list[Interval]:
        """When at least one trajectory was unfinished."""
        return [interval for interval in self._busy.intervals(time.time()) if interval[1] > since_s]

    async def spans(self, since_s: float) -> list[TraceSpan]:
        return [span for span in self._spans if span.start_s >= since_s]

    async def state(self) -> RolloutState:
        return RolloutState(
            fault=f"{_NAME} failed: {self._tasks.fault}" if self._tasks.fault else self._fault,
            lost=self._lost.verdict,
            failure=self._manager.hopeless,
            version=self._version,
            engines={member.engine_id: member.bound for member in self._manager.fleet.ordered()},
            waiting_for_weights=self._manager.waiting_for_weights,
            expects_engines=self._manager.fleet.expects_engines,
            running_groups=tuple(sorted(self._running)),
            waits=tuple(self._board.longest(_REPORTED_WAITS)),
            queued=self._manager.fleet.queued,
        )

    async def routing_report(self) -> RoutingReport:
        """Since the last one."""
        return self._router.report()

    async def stop(self) -> None:
        await self._tasks.end(_STOP_S)
        self._threads.shutdown(wait=False, cancel_futures=True)
        self._router.learn_finished()
        await self._router.save(at_once=True)

    async def _admit(self) -> None:
        """Consumes prompts; waits for `_wake`; unblocked by publications and write-offs. Ends when too many groups were lost."""
        rollout = self._config.rollout
        runner = self._runner(rollout)
        while self._lost.verdict is None:
            allowed = groups_to_issue(
                AdmissionState(issued=self._issued, written_off=self._written_off, version=self._version),
                groups_per_step=rollout.groups_per_step,
                staleness=rollout.staleness,
                total_steps=self._config.training.steps,
            )
            for _ in range(allowed):
                version = self._version  # once: the await below may bring a publication
                issue = self._queue.next(version)
                self._issued += 1
                # Before it runs: a step that does not know of it would take younger groups, and this one would miss its own.
                await self._tell_store(f"start group {issue.index}", self._store.group_started.remote(issue.index, version))
                self._tasks.spawn(self._run_group(runner, issue, version))
            await self._wake.wait()  # unbounded: a step that gets no groups says who is late
            self._wake.clear()  # before the look, not after it: what comes during the look must wake this again

    async def _run_group(self, runner: GroupRunner, issue: IssuedPrompt, version: PolicyVersion) -> None:
        index = issue.index
        prompt = next(iter(self._prompts.training(index)))
        self._running.add(index)
        self._busy.enter(time.time())
        try:
            group, verdict = await runner.run(index, prompt, version, issue.losses)
        finally:
            self._busy.leave(time.time())
            self._running.discard(index)
        if verdict is GroupVerdict.DROP:
            self._written_off += 1
            await self._tell_store(f"drop group {index}", self._store.drop_group.remote(index))
            if not is_unanswerable(group):
                self._lost.lose(group)
                self._queue.lose(index, self._version)
            self._wake.set()
        else:
            self._lost.keep()
            adding = self._store.add_group.remote(group, verdict is GroupVerdict.PARTIAL)
            await self._tell_store(f"take group {index}", adding)

    def _runner(self, config: RolloutConfig) -> GroupRunner:
        return GroupRunner(config=config, tools=self._tools, score=self._score, on_retry=self._note_retry)

    async def _score(self, group: TrajectoryGroup) -> TrajectoryGroup:
        """A scorer that gives no answer at all has scored nothing; one that is gone ends the run."""
        name, deadline_s = f"group {group.index}", patience_s(self._config.rollout) + GRACE_S
        try:
            with self._board.waiting(name, "the scorer"):
                return await reply(name, "the scorer", self._scorer.score_group.remote(group), deadline_s)
        except DeadlineError as error:
            failure = Failure(kind=FailureKind.SCORER, message=str(error))
            unscored = (t if t.failure is not None or t.reward is not None else t.failed(failure) for t in group.trajectories)
            return replace(group, trajectories=tuple(unscored))

    async def _tell_store(self, what: str, reference: Any) -> None:
        """The store only takes notes: one that is silent is lost, and groups with it."""
        with self._board.waiting(_NAME, f"the trajectory store to {what}"):
            await reply(_NAME, f"the trajectory store to {what}", reference, CALL_DEADLINE_S)

    def _record(self, name: str, lane: str, start_s: float, end_s: float) -> None:
        self._spans.append(TraceSpan(name=name, lane=lane, start_s=start_s, end_s=end_s))

    def _note_retry(self, index: int) -> None:
        self._tasks.spawn(self._tell_store(f"note a retry of group {index}", self._store.group_retried.remote(index)))


class WaitBoard:
    """Owned by one event loop. Holds what is waited for at the moment, and nothing of what is over."""

    def __init__(self) -> None:
        self._numbers = itertools.count()
        self._waits: dict[int, tuple[str, str, float]] = {}

    @contextmanager
    def waiting(self, who: str, whom: str) -> Generator[None]:
        """Around a wait."""
        number = next(self._numbers)
        self._waits[number] = (who, whom, time.monotonic())
        try:
            yield
        finally:
            del self._waits[number]

    def longest(self, count: int) -> list[str]:
        """The waits that began first, as sentences; what is left out is counted."""
        now = time.monotonic()
        said = [f"{who} waits {now - since:.0f} s for {whom}" for who, whom, since in list(self._waits.values())[:count]]
        more = len(self._waits) - len(said)
        return [*said, f"and {more} more wait"] if more else said
