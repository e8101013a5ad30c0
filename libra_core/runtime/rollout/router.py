"""The routing policy of a run and what surrounds it: limits that follow the lengths, learning, counts, the tree's file."""

import asyncio
import logging
import math
import time
from collections import deque
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import quantiles

from libra_core.config import LibraConfig, plan_of
from libra_core.costs.api import load_model
from libra_core.planning.run_costs import engine_degrees
from libra_core.planning.run_laws import load_run_laws, run_costs_or_kernels
from libra_core.ports.routing import NO_PROMPT, EngineLoad, FinishedTrajectory, TurnContext
from libra_core.routing.buckets import Buckets, buckets_from_lengths, usual_quantiles
from libra_core.routing.build import READS_TREE, Policy, RouterSetup, build_policy, plain_name
from libra_core.routing.costs import CostTable, table_for
from libra_core.routing.prefix_tree import PrefixTree
from libra_core.routing.tree_file import load_newest_tree, save_tree
from libra_core.routing.tree_settings import TreeSettings
from libra_core.runtime.rollout.kv_moves import MoveMeter, MoveWork
from libra_core.types.ids import EngineId, TrajectoryId
from libra_core.types.laws import EngineLaw
from libra_core.types.reports import RoutingReport

logger = logging.getLogger(__name__)

_KEPT_LENGTHS = 4096
_RECENT = 1024
_RETUNE_EVERY = 256
_FIRST_LIMITS_FROM = 64
_SAVE_EVERY_S = 30.0
_WRITE_S = 120.0
_TAIL = 0.9


@dataclass(frozen=True, slots=True, kw_only=True)
class Ending:
    """Where one trajectory ended."""

    generated_tokens: int
    bucket: int
    moves: int


class FleetRouter:
    """Owned by the coordinator's event loop.

    Consumes: turns that need an engine, finished trajectories. `choose` only reads the tree; learning waits in a queue that
    `settle` empties between other work, and not while the tree is being written by another thread.
    """

    def __init__(self, config: LibraConfig, *, laws: Mapping[int, EngineLaw] | None, folder: Path, resumed: Path | None) -> None:
        self._config = config
        self.degrees = self._configured = tuple(sorted({group.tp for group in config.rollout.engines}))
        """Of the engines that serve or will, ascending: one bucket each."""
        self._laws = laws
        self._folder = folder
        self._tree = self._open_tree(resumed) if plain_name(config.routing.policy) in READS_TREE else None
        self._lengths: deque[float] = deque(self._known_lengths(), maxlen=_KEPT_LENGTHS)
        self._buckets = self._first_buckets()
        self._meter = MoveMeter()
        self._policy: Policy = build_policy(config.routing.policy, self._setup())
        self._pending: deque[FinishedTrajectory] = deque()
        self._write: asyncio.Future[None] | None = None
        """Of the tree, in a thread; it outlives a cancelled `save`."""
        self._written = 0 if self._tree is None else self._tree.learnt
        self._written_s = 0.0
        self._moves_of: dict[TrajectoryId, int] = {}
        self._endings: deque[Ending] = deque(maxlen=_RECENT)
        self._finished = 0
        self._begin_report()

    def choose(self, turn: TurnContext, engines: Sequence[EngineLoad]) -> EngineId:
        started_ns = time.perf_counter_ns()
        chosen = self._policy.choose(turn, engines)
        self._decisions_us.append((time.perf_counter_ns() - started_ns) / 1e3)
        self._decisions += 1
        return chosen

    def learn(self, finished: FinishedTrajectory) -> None:
        """Takes note at once; the policy learns when the event loop has nothing more urgent."""
        self._pending.append(finished)
        asyncio.get_running_loop().call_soon(self.learn_finished)

    def forget(self, trajectory_id: TrajectoryId) -> None:
        self._moves_of.pop(trajectory_id, None)
        self._policy.forget(trajectory_id)

    def learn_finished(self) -> None:
        """Learn what has finished; let the bucket limits follow it every so often."""
        while self._pending and not self._writing:
            finished = self._pending.popleft()
            self._policy.learn(finished)
            self._lengths.append(float(finished.generated_tokens))
            self._finished += 1
            if self._finished % _RETUNE_EVERY == 0 or self._finished == _FIRST_LIMITS_FROM:
                self._retune()

    def use_degrees(self, degrees: Collection[int]) -> tuple[int, ...]:
        """The fleet has engines of these degrees from here on. Limits of other buckets than the configured ones follow the
        lengths, and where trajectories ended in the old ones says nothing of the new ones."""
        wanted = tuple(sorted(set(degrees)))
        if wanted != self.degrees:
            self.degrees = wanted
            self._endings.clear()
            self._buckets = self._first_buckets()
            self._policy.retune(self._buckets, self._costs())
        return self.degrees

    def note_move(self, turn: TurnContext) -> None:
        self._moves += 1
        self._moved_tokens += turn.context_tokens
        self._moves_of[turn.trajectory_id] = self._moves_of.get(turn.trajectory_id, 0) + 1

    def note_first_token(self, seconds: float) -> None:
        """A turn that began with a move had its first token after so long."""
        self._moved_first_token_s += seconds

    def note_work(self, work: MoveWork) -> None:
        """A target took a context over. What that costs is learnt where contexts are handed over; engine laws know prefill."""
        self._handed_over_tokens += work.loaded_tokens
        self._reprefilled_tokens += work.computed_tokens
        if work.loaded_tokens:
            self._handover_s += work.seconds
        else:
            self._reprefill_s += work.seconds
        self._meter.add(work.tp, work.context_tokens, work.seconds)

    def note_ahead(self, seconds: float) -> None:
        """A target computed a context for so long while a tool ran."""
        self._ahead += 1
        self._ahead_s += seconds

    def note_end(self, finished: FinishedTrajectory, tp: int, context_tokens: int) -> None:
        """A trajectory has ended by itself, on an engine of that degree, which may have left the fleet by now."""
        moves = self._moves_of.pop(finished.trajectory_id, 0)
        if tp in self.degrees:
            self._endings.append(Ending(generated_tokens=finished.generated_tokens, bucket=self.degrees.index(tp), moves=moves))
        self._ended_tokens += context_tokens

    def report(self) -> RoutingReport:
        """Since the last report; `accuracy` and `tail_recall` over the last thousand trajectories."""
        times = list(self._decisions_us)
        cuts = quantiles(times, n=100) if len(times) > 1 else [math.nan] * 99
        result = RoutingReport(
            decisions=self._decisions,
            decision_p50_us=cuts[49],
            decision_p99_us=cuts[98],
            moves=self._moves,
            moved_tokens=self._moved_tokens,
            moved_fraction=self._moved_tokens / self._ended_tokens if self._ended_tokens else math.nan,
            moved_first_token_s=self._moved_first_token_s,
            handed_over_tokens=self._handed_over_tokens,
            handover_s=self._handover_s,
            reprefilled_tokens=self._reprefilled_tokens,
            reprefill_s=self._reprefill_s,
            ahead=self._ahead,
            ahead_s=self._ahead_s,
            accuracy=accuracy(self._endings, self._buckets),
            tail_recall=tail_recall(self._endings, len(self.degrees)),
            tree_nodes=0 if self._tree is None else len(self._tree.table),
        )
        self._begin_report()
        return result

    async def save(self, *, at_once: bool = False) -> None:
        """Write the tree beside the run when it has grown; at most every half a minute in a thread, or `at_once` in this one,
        where threads may all be taken by tools or have ended; a write that a thread has begun ends first."""
        if at_once and self._write is not None and not self._write.done():
            await asyncio.wait([self._write], timeout=_SAVE_EVERY_S)
            self.learn_finished()
        tree = self._tree
        if tree is None or tree.learnt == self._written:
            return
        if self._writing:
            if at_once:
                logger.warning("the prefix tree is not saved: a write still runs after %.0f s", _SAVE_EVERY_S)
            return
        if not at_once and time.monotonic() - self._written_s < _SAVE_EVERY_S:
            return
        self._written_s, learnt = time.monotonic(), tree.learnt
        try:
            if at_once:
                save_tree(tree, tree_path(self._folder))
            else:
                loop = asyncio.get_running_loop()
                self._write = loop.run_in_executor(None, save_tree, tree, tree_path(self._folder))  # failure: raised below
                done, _ = await asyncio.wait([self._write], timeout=_WRITE_S)
                if not done:
                    raise TimeoutError(
                        f"a write of {learnt} trajectories still runs after {_WRITE_S:.0f} s, and nothing is learnt"
                    )
                self._write.result()  # unbounded: it is done
            self._written = learnt
        except OSError as error:
            logger.warning("the prefix tree could not be written to %s: %s; the run goes on", self._folder, error)

    @property
    def _writing(self) -> bool:
        return self._write is not None and not self._write.done()

    def _begin_report(self) -> None:
        self._decisions = self._moves = self._moved_tokens = self._ahead = self._ended_tokens = 0
        self._handed_over_tokens = self._reprefilled_tokens = 0
        self._moved_first_token_s = self._handover_s = self._reprefill_s = self._ahead_s = 0.0
        self._decisions_us: deque[float] = deque(maxlen=_KEPT_LENGTHS)

    def _open_tree(self, resumed: Path | None) -> PrefixTree:
        routing = self._config.routing
        settings = TreeSettings(half_life=routing.half_life_trajectories, max_nodes=routing.max_nodes)
        if resumed is None:
            return PrefixTree(settings)
        tree, refusal = load_newest_tree(tree_path(resumed), settings)
        if refusal:
            logger.warning("%s; routing goes on with what %d trajectories taught", refusal, tree.learnt)
        return tree

    def _known_lengths(self) -> list[float]:
        """What a tree of an earlier part of the run has seen of whole trajectories."""
        if self._tree is None or not self._tree.learnt:
            return []
        totals = self._tree.predict(self._tree.start(NO_PROMPT))
        return [totals.quantile((step + 0.5) / _FIRST_LIMITS_FROM) for step in range(_FIRST_LIMITS_FROM)]

    def _first_buckets(self) -> Buckets:
        """Configured limits, or before anything has finished equal parts of the longest possible trajectory."""
        given, longest, count = self._given_limits, self._config.rollout.max_new_tokens, len(self.degrees)
        if self._lengths and given is None:
            return self._buckets_of_lengths()
        parts = given if given is not None else [longest * (step + 1) / count for step in range(count - 1)]
        return Buckets(degrees=self.degrees, limits=(*map(float, parts), math.inf))

    def _setup(self) -> RouterSetup:
        routing = self._config.routing
        embed = None
        if routing.policy == "embedding":
            from libra_core.engines.sentence_model import sentence_embedder  # heavy; only when chosen

            embed = sentence_embedder()
        return RouterSetup(
            buckets=self._buckets,
            costs=self._costs(),
            seed=self._config.seed,
            start=routing.start,
            hysteresis=routing.hysteresis,
            tree=self._tree,
            embed=embed,
        )

    def _costs(self) -> CostTable:
        longest = self._config.rollout.max_new_tokens
        lengths = list(self._lengths) or [longest * (step + 0.5) / _FIRST_LIMITS_FROM for step in range(_FIRST_LIMITS_FROM)]
        measured = {} if self._config.rollout.kv_transfer.connector is None else self._meter.s_per_token()
        return table_for(self._buckets, lengths, self._laws, move_s_per_token=measured)

    @property
    def _given_limits(self) -> tuple[int, ...] | None:
        return self._config.routing.limits_tokens if self.degrees == self._configured else None

    def _buckets_of_lengths(self) -> Buckets:
        given = self._config.routing.limit_quantiles if self.degrees == self._configured else None
        cuts = given or usual_quantiles(len(self.degrees))
        return buckets_from_lengths(self._lengths, self.degrees, cuts)

    def _retune(self) -> None:
        if self._given_limits is None:
            self._buckets = self._buckets_of_lengths()
        self._policy.retune(self._buckets, self._costs())


def open_router(config: LibraConfig, model_folder: str, run_dir: Path) -> FleetRouter:
    """The router of a run, with the engines' laws where they are known and what an earlier part of the run has learnt."""
    return FleetRouter(config, laws=_laws(config, model_folder), folder=run_dir, resumed=config.run.resumed_folder)


def _laws(config: LibraConfig, model_folder: str) -> Mapping[int, EngineLaw] | None:
    """None, with the reason in the log, when this run's engines have no law; a 14B model's on A800 stand in."""
    plan = plan_of(config)
    report, missing = load_run_laws(config, plan, model_folder)
    if not report.engines:
        logger.warning("routing weighs engines as those of a 14B model on A800: %s", "; ".join(missing))
        return None
    laws = {tp: law for (tp, _), (law, _) in zip(plan.rollout.engines, report.engines, strict=True)}
    if config.replanning.repartition:
        costs = run_costs_or_kernels(config, load_model(model_folder))
        laws |= {tp: costs.engines[tp] for tp in engine_degrees(costs, plan.rollout.num_gpus)}
    return laws


def tree_path(run_folder: Path) -> Path:
    return run_folder / "routing" / "prefix_tree"


def accuracy(endings: Sequence[Ending], buckets: Buckets) -> float:
    """Share that ended in the bucket of its total after at most one move; nan where there is nothing to choose."""
    if not endings or len(buckets) < 2:
        return math.nan
    return sum(end.moves <= 1 and end.bucket == buckets.of(end.generated_tokens) for end in endings) / len(endings)


def tail_recall(endings: Sequence[Ending], buckets: int) -> float:
    """Share of the longest tenth that ended in the last bucket: one of them on a small engine sets the iteration's time."""
    if not endings or buckets < 2:
        return math.nan
    border = sorted(end.generated_tokens for end in endings)[min(len(endings) - 1, int(_TAIL * len(endings)))]
    tail = [end for end in endings if end.generated_tokens >= border]
    return sum(end.bucket == buckets - 1 for end in tail) / len(tail)
