"""Real engines of TP 1, 1 and 2 under forced moves: trajectories come out as if they had never moved."""

import asyncio
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest
import ray

from libra_core.config import LibraConfig, plan_of
from libra_core.config.loading import validate_config
from libra_core.engines.verification.engine_model import SMALL, build_engine_model
from libra_core.engines.weight_source import FileWeights
from libra_core.ports.environment import Episode, TurnStops
from libra_core.ports.routing import EngineLoad, TurnContext
from libra_core.runtime.base import ray_cluster
from libra_core.runtime.base.remains import shared_memory, temp_folder
from libra_core.runtime.cluster.controller import ClusterControllerActor, StartedEngine
from libra_core.runtime.rollout.agent_loop import AgentLoop, AgentTools
from libra_core.runtime.rollout.fleet_manager import FleetManager
from libra_core.runtime.rollout.kv_moves import no_offer, offers_of
from libra_core.runtime.rollout.router import FleetRouter
from libra_core.runtime.rollout.weights import PublicationOrder
from libra_core.types.ids import EngineId, GroupId, PolicyVersion, PromptId, TrajectoryId
from libra_core.types.trajectory import Prompt, ToolCall, ToolReturn, ToolStatus, Trajectory
from libra_core.workloads.episodes import WaitingEpisode

pytestmark = [pytest.mark.integration, pytest.mark.slow, pytest.mark.timeout(1800)]

NAMESPACE = "libra-moves-mv0001"
NUM_TRAJECTORIES = 8
TOOL_S = 0.3
STOPS = tuple(range(5, SMALL.vocab_size, 11))


class EveryTurnCalls:
    """A tool call ends each turn; the tool's answer is a function of what was asked."""

    def stops(self) -> TurnStops:
        return TurnStops(token_ids=STOPS)

    async def reset(self, prompt: Prompt) -> Episode:
        return WaitingEpisode(self.answer)

    def parse_call(self, turn_token_ids: Sequence[int]) -> ToolCall | None:
        return ToolCall(tool="echo", argument=str(sum(turn_token_ids)))

    async def answer(self, call: ToolCall) -> ToolReturn:
        await asyncio.sleep(TOOL_S)
        tokens = tuple((int(call.argument) * 7 + step) % SMALL.vocab_size for step in range(9))
        return ToolReturn(tool=call.tool, status=ToolStatus.OK, token_ids=tokens, duration_s=TOOL_S)

    def answer_failure(self, call: ToolCall, status: ToolStatus) -> ToolReturn:
        return ToolReturn(tool=call.tool, status=status, token_ids=(1,), duration_s=0.0)

    async def score(self, prompt: Prompt, trajectory: Trajectory) -> float:
        return 0.0

    def render(self, token_ids: Sequence[int]) -> str:
        return str(list(token_ids))


@dataclass
class World:
    """Three started engines and what starts them again."""

    config: LibraConfig
    controller: Any
    engines: list[StartedEngine]
    weights: FileWeights
    folder: Path


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    folder = tmp_path_factory.mktemp("moves")
    model = build_engine_model(folder / "model", seed=1)
    rollout = {
        "engines": [{"tp": 1, "count": 2}, {"tp": 2, "count": 1}],
        "max_turns": 6,
        "max_new_tokens": 72,
        "max_context_tokens": 320,
        "kv_cache_mib": 64,
        "max_num_seqs": 16,
        "turn_deadline_s": 120.0,
        "engine_start_deadline_s": 600.0,
        "kv_transfer": "shared_folder",
    }
    config = validate_config({"model": {"path": str(model)}, "rollout": rollout, "routing": {"policy": "sticky"}})
    ray_cluster.start_private(NAMESPACE, gpu_slots=plan_of(config).num_gpus)
    try:
        env = {"env_vars": {"OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}}
        actor = ray.remote(ClusterControllerActor).options(name="controller", num_cpus=0, max_concurrency=64, runtime_env=env)
        scratch = str(temp_folder(NAMESPACE))
        controller = actor.remote(config, str(model), plan_of(config), scratch)
        engines = ray.get(controller.start_engines.remote(), timeout=700)
        yield World(
            config=config,
            controller=controller,
            engines=engines,
            weights=FileWeights(path=str(model / "model.safetensors")),
            folder=folder,
        )
        ray.get(controller.stop.remote(), timeout=60)
    finally:
        ray_cluster.leave(NAMESPACE, folder / "logs")
        shutil.rmtree(shared_memory(NAMESPACE), ignore_errors=True)
    left = [p for p in psutil.Process().children(recursive=True) if "vllm" in " ".join(p.cmdline()).lower()]
    assert not psutil.wait_procs(left, timeout=15)[1]


class Forced(FleetRouter):
    """Every turn on another engine than the one before; `on_target` hears of every choice that moves."""

    on_target: Callable[[EngineId], None] = staticmethod(lambda _engine: None)

    def choose(self, turn: TurnContext, engines: Sequence[EngineLoad]) -> EngineId:
        names = sorted(engine.engine_id for engine in engines)
        if turn.current not in names:
            return names[(int(turn.trajectory_id[1:]) + len(turn.tool_returns)) % len(names)]
        chosen = names[(names.index(turn.current) + 1) % len(names)]
        self.on_target(chosen)
        return chosen


def prompts() -> list[Prompt]:
    return [
        Prompt(
            prompt_id=PromptId(f"p{number}"),
            token_ids=tuple((31 * number + 17 * step) % SMALL.vocab_size for step in range(40 + number)),
            text="",
            answers=(),
        )
        for number in range(NUM_TRAJECTORIES)
    ]


async def run_all(
    world: World,
    router: FleetRouter,
    during: Callable[[FleetManager], Any] | None = None,
    *,
    version: int,
    hand_over: bool = False,
) -> tuple[list[Trajectory], FleetManager]:
    tasks: set[asyncio.Task[None]] = set()

    def spawn(work: Any) -> None:
        tasks.add(asyncio.get_running_loop().create_task(work))

    manager = FleetManager(world.config, world.controller, spawn, lambda *_: None, router)
    manager.start_with(world.engines)
    await manager.publish(PublicationOrder(version=PolicyVersion(version), source=world.weights))
    tools = AgentTools(
        environment=EveryTurnCalls(),
        bind=manager.fleet.bind,
        foresee=manager.fleet.foresee,
        generate=manager.fleet.generate,
        release=manager.fleet.release,
        watch=router,
        record=lambda *_: None,
        offer=offers_of(world.config.rollout, manager.fleet) if hand_over else no_offer,
    )
    greedy = world.config.rollout.model_copy(update={"temperature": 0.0})
    loops = [
        AgentLoop(
            trajectory_id=TrajectoryId(f"t{number}"),
            group_id=GroupId("g"),
            order=number,
            sample_index=0,
            prompt=prompt,
            config=greedy,
            tools=tools,
        ).run()
        for number, prompt in enumerate(prompts())
    ]
    side = [during(manager)] if during else []
    trajectories, *_ = await asyncio.gather(asyncio.gather(*loops), *side)
    if tasks:
        await asyncio.wait(tasks, timeout=240)
    return list(trajectories), manager


@pytest.fixture(scope="module")
def stayed(world: World) -> list[Trajectory]:
    """The same trajectories, each on one engine of TP 1 from its first token to its last."""
    single = World(world.config, world.controller, world.engines[:1], world.weights, world.folder)
    trajectories, _ = asyncio.run(run_all(single, router_of(world, FleetRouter), version=1))
    assert all(len(one.engine_history) == 1 for one in trajectories)
    assert len({one.token_ids[-20:] for one in trajectories}) == NUM_TRAJECTORIES, "the model does not just repeat one token"
    assert all(one.turns >= 2 for one in trajectories)
    return trajectories


def router_of(world: World, kind: type[FleetRouter]) -> Any:
    return kind(world.config, laws=None, folder=world.folder, resumed=None)


def require_same(moved: list[Trajectory], stayed: list[Trajectory]) -> None:
    for one, other in zip(moved, stayed, strict=True):
        assert one.failure is None
        assert one.token_ids == other.token_ids
        assert one.loss_mask == other.loss_mask
        assert one.turns == other.turns
        assert max(abs(a - b) for a, b in zip(one.logprobs, other.logprobs, strict=True)) < 1e-4
        covered = [at for segment in one.versions for at in range(segment.start, segment.end)]
        assert covered == [at for at, sampled in enumerate(one.loss_mask) if sampled]


@pytest.mark.parametrize(("hand_over", "version"), [(False, 2), (True, 3)])
def test_forced_moves_change_no_token(world: World, stayed: list[Trajectory], hand_over: bool, version: int) -> None:
    router = router_of(world, Forced)
    moved, _ = asyncio.run(run_all(world, router, version=version, hand_over=hand_over))
    require_same(moved, stayed)
    assert all(len(one.engine_history) == one.turns for one in moved)
    assert len({engine for one in moved for engine in one.engine_history}) == 3
    report = router.report()
    print("ROUTING", report)
    assert report.moves == sum(one.turns - 1 for one in moved)
    assert report.moved_tokens > 0
    assert report.moved_first_token_s > 0
    assert report.ahead == report.moves, "every move was foreseen, and its context taken over while the tool ran"
    assert all(one.oldest_version == version for one in moved)
    reprefilled = sum(one.reprefilled_tokens for one in moved)
    if hand_over:
        assert report.handed_over_tokens > 0
        assert report.handover_s > 0
        assert reprefilled == 0, "between all degrees, whatever was computed once was loaded"
    else:
        assert (report.handed_over_tokens, report.handover_s) == (0, 0)
        assert reprefilled > 0
        assert report.reprefill_s > 0


@pytest.mark.parametrize(("hand_over", "version"), [(False, 4), (True, 6)])
def test_versions_survive_a_publication_between_moves(
    world: World, stayed: list[Trajectory], hand_over: bool, version: int
) -> None:
    async def publish(manager: FleetManager) -> None:
        await asyncio.sleep(2.5 * TOOL_S)
        await manager.publish(PublicationOrder(version=PolicyVersion(version + 1), source=world.weights))

    moved, _ = asyncio.run(run_all(world, router_of(world, Forced), publish, version=version, hand_over=hand_over))
    require_same(moved, stayed)
    for one in moved:
        versions = [segment.version for segment in one.versions]
        assert versions == sorted(versions)
    assert {segment.version for one in moved for segment in one.versions} == {version, version + 1}


def test_an_engine_killed_during_a_move_loses_nothing(world: World, stayed: list[Trajectory]) -> None:
    victim = next(engine for engine in world.engines if engine.tp == 2)
    router = router_of(world, Forced)
    killed: list[float] = []

    def kill(target: EngineId) -> None:
        if target == victim.engine_id and not killed:
            killed.append(time.time())
            asyncio.get_running_loop().call_later(0.01, lambda: ray.kill(victim.handle, no_restart=True))

    router.on_target = kill
    moved, manager = asyncio.run(run_all(world, router, version=8, hand_over=True))
    assert killed
    require_same(moved, stayed)
    names = {member.engine_id for member in manager.members()}
    assert victim.engine_id not in names
    assert len(names) == 3, "a replacement has joined"
