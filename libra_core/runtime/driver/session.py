"""A running session: every actor of one training run, from start to clean end."""

import logging
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import psutil
import ray
from ray.exceptions import RayError

from libra_core.config import LibraConfig, plan_of
from libra_core.costs.api import load_model
from libra_core.engines.checkpoint_files import chosen_checkpoint, foreign_model, set_aside_newer
from libra_core.engines.model_folder import read_model_facts
from libra_core.errors import CheckpointError, ConfigError, LibraError, ResourceError
from libra_core.planning.problem import ModelShape
from libra_core.planning.replanner import Replanner
from libra_core.planning.run_costs import run_costs
from libra_core.planning.run_forecast import RunForecaster
from libra_core.planning.run_laws import load_run_laws
from libra_core.runtime.base import ray_cluster
from libra_core.runtime.base.actors import StartedEngine
from libra_core.runtime.base.remains import remove_remains, shared_memory, temp_folder
from libra_core.runtime.base.rpc import CALL_DEADLINE_S, GRACE_S, ActorHandle, answered, answered_any, ask
from libra_core.runtime.cluster.controller import ClusterControllerActor
from libra_core.runtime.driver.clients import ControllerClient, RewardClient, RunProgress, TrainerClient
from libra_core.runtime.driver.rollout_client import RolloutClient
from libra_core.runtime.driver.trainer_group import HybridFeed, TrainerGroup
from libra_core.runtime.driver.weight_publisher import WeightPublisher
from libra_core.runtime.rollout.admission import PromptCursor
from libra_core.runtime.rollout.coordinator import RolloutCoordinatorActor
from libra_core.runtime.rollout.scorer import RewardActor
from libra_core.runtime.rollout.store import StoreSpec, TrajectoryStoreActor
from libra_core.tracking.run_folder import note_session
from libra_core.types.ids import PolicyVersion
from libra_core.types.plan import Plan
from libra_core.types.session import SessionRef

logger = logging.getLogger(__name__)

Report = Callable[[str, float], None]
"""What is being started, and the share that is done, 0..1."""

_STOP_DEADLINE_S = 40.0


@dataclass(slots=True, kw_only=True)
class SessionClients:
    """The clients of one session."""

    rollout: RolloutClient
    reward: RewardClient
    trainer: TrainerClient
    controller: ControllerClient
    planner: Replanner | None = None
    """Where hybrid replicas can change sides, or engines be divided anew."""


@dataclass(slots=True, kw_only=True)
class Session:
    """Everything that has to end with the run. The flow's process owns it."""

    ref: SessionRef
    config: LibraConfig
    controller: ActorHandle | None = None
    coordinator: ActorHandle | None = None
    connection: SessionClients | None = None

    def close(self) -> None:
        """End the agent loops, then engines and trainers, then Ray; bounded, and safe to call in any state."""
        # The coordinator first: it would take the end of engines for losses, and ask the controller for others in their place.
        for name, actor in (("rollout coordinator", self.coordinator), ("cluster controller", self.controller)):
            if actor is None:
                continue
            try:
                ask(f"the {name} to stop", actor.stop.remote(), _STOP_DEADLINE_S)
            except (LibraError, RayError) as error:
                logger.warning("%s; it is ended with its process", error)
        ray_cluster.leave()
        remove_remains(self.ref)


def start_session(
    config: LibraConfig, model_folder: Path, run_dir: Path, report: Report, resume_from: Path | None = None
) -> Session:
    """Start Ray and every actor, restore a checkpoint when the run resumes, and let rollout begin.

    Raises:
        LibraError: with everything that was started ended again.
    """
    require_memory(config)
    if resume_from is not None:
        _require_model(resume_from, model_folder)
    run_id = f"{run_dir.name}-{secrets.token_hex(3)}"
    namespace = f"{ray_cluster.NAMESPACE_PREFIX}{run_id}"
    ref = SessionRef(run_id=run_id, run_dir=str(run_dir), ray_address=config.backend.ray_address, namespace=namespace)
    note_session(run_dir, ref)
    report("starting Ray", 0.0)
    session = Session(ref=replace(ref, ray_address=_connect(config, namespace)), config=config)
    try:
        _start_actors(session, str(model_folder), resume_from, report)
    except BaseException as error:  # an interrupt too: nobody else knows of what has been started
        session.close()
        logs = Path(session.ref.run_dir) / "logs"
        if isinstance(error, LibraError) and any(logs.glob("*")):
            error.args = (f"{error}; the logs of this start are in {logs}",)
        raise
    return session


def _start_actors(session: Session, model_folder: str, resume_from: Path | None, report: Report) -> None:
    config = session.config
    private = config.backend.ray_address == "local"
    scratch = str(temp_folder(session.ref.namespace)) if private else None
    env = {"env_vars": {"OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}}

    def actor(cls: type, name: str) -> Any:
        return ray.remote(cls).options(name=name, num_cpus=0, max_concurrency=4096, runtime_env=env)

    session.controller = actor(ClusterControllerActor, "controller").remote(config, model_folder, plan_of(config), scratch)
    assert session.controller is not None
    # Both begin at once, since each takes minutes; the trainer is waited for first, since version and prompts of a checkpoint
    # come from it and everything below is made with them.
    starting_engines = session.controller.start_engines.remote()
    starting_trainers = session.controller.start_trainers.remote()
    report("starting the trainer", 0.1)
    beside = ("the engines", starting_engines)
    ranks = TrainerGroup(_started("the trainer", starting_trainers, config.training.start_deadline_s, beside))
    version, progress = _restore(config, ranks, resume_from)
    _go_on_from(resume_from, session.ref)
    store = actor(TrajectoryStoreActor, "store").remote(_store_spec(config), progress.cursor)
    scorer = actor(RewardActor, "scorer").remote(config, model_folder, store)
    coordinator = actor(RolloutCoordinatorActor, "coordinator").remote(
        config, model_folder, progress.cursor, version, session.ref.run_dir
    )
    session.coordinator = coordinator
    report("starting the engines", 0.5)
    engines: list[StartedEngine] = _started("the engines", starting_engines, config.rollout.engine_start_deadline_s)
    attaching = coordinator.attach.remote(store, scorer, session.controller, engines)
    ask("the rollout coordinator to load the workload and take the engines", attaching, config.rollout.engine_start_deadline_s)
    ask("the cluster controller to take the fleet", session.controller.attach.remote(coordinator), CALL_DEADLINE_S + GRACE_S)
    hybrids = HybridFeed(session.controller) if config.elastic.hybrid_replicas else None
    trainer = TrainerClient(config, Path(session.ref.run_dir), ranks, store, hybrids)
    publisher = WeightPublisher(config, trainer, coordinator, shared_memory(session.ref.namespace))
    rollout = RolloutClient(config, coordinator=coordinator, store=store, scorer=scorer, trainer=trainer, publisher=publisher)
    report("publishing the first weights", 0.9)
    rollout.publish(version)
    ask("the coordinator to begin", coordinator.begin.remote())
    controller = ControllerClient(session.controller)
    planner = _begin_iterations(config, model_folder, controller, rollout, trainer, progress)
    reward = RewardClient(scorer)
    session.connection = SessionClients(rollout=rollout, reward=reward, trainer=trainer, controller=controller, planner=planner)
    report("ready", 1.0)


def _begin_iterations(
    config: LibraConfig,
    model_folder: str,
    controller: ControllerClient,
    rollout: RolloutClient,
    trainer: TrainerClient,
    progress: RunProgress,
) -> Replanner | None:
    """What learns from iterations goes on from the run's progress, and is in every checkpoint from here on."""
    forecaster = open_forecaster(config, plan_of(config), model_folder)
    if forecaster is not None and progress.forecast is not None:
        forecaster.history = progress.forecast
    rollout.begin_iterations(forecaster)
    planner = _open_planner(config, model_folder, controller, rollout, forecaster)
    if planner is not None and progress.experience is not None:
        planner.resume(progress.experience)
    trainer.progress = lambda cursor: RunProgress(
        cursor=cursor,
        forecast=forecaster.history if forecaster is not None else None,
        experience=planner.experience if planner is not None else None,
    )
    return planner


def _open_planner(
    config: LibraConfig,
    model_folder: str,
    controller: ControllerClient,
    rollout: RolloutClient,
    forecaster: RunForecaster | None,
) -> Replanner | None:
    """Forecasts of the run follow the plan."""
    if not config.elastic.hybrid_replicas and not config.replanning.repartition:
        return None

    def follow(plan: Plan) -> None:
        if forecaster is not None:
            forecaster.use(load_run_laws(config, plan, model_folder)[0])

    try:
        model = load_model(model_folder)
        return Replanner(config, (run_costs(config, model), ModelShape.of(model)), controller, rollout, follow)
    except ConfigError:
        if config.replanning.every_steps:
            raise
        logger.warning("the plan of this run cannot be compared", exc_info=True)
        return None


def _connect(config: LibraConfig, namespace: str) -> str:
    if config.backend.ray_address != "local":
        ray_cluster.join(config.backend.ray_address, namespace)
        return config.backend.ray_address
    return ray_cluster.start_private(namespace, gpu_slots=plan_of(config).num_gpus if config.backend.kind == "cpu" else None)


def _started(what: str, starting: Any, deadline_s: float, beside: tuple[str, Any] | None = None) -> Any:
    """Devices are waited for up to the deadline, and what starts on them as long again; the controller's sentence comes first.

    What starts `beside` and fails is raised at once, instead of after the wait for this.
    """
    end_s = time.monotonic() + 2 * deadline_s + GRACE_S
    if beside is not None and answered_any([starting, beside[1]], end_s - time.monotonic()) and not answered(starting):
        ask(f"{beside[0]} to start", beside[1])
    return ask(f"{what} to start", starting, end_s - time.monotonic())


def _restore(config: LibraConfig, ranks: TrainerGroup, resume_from: Path | None) -> tuple[PolicyVersion, RunProgress]:
    """A fresh run begins at version 0 with prompt 0 and nothing more."""
    if resume_from is None:
        return PolicyVersion(0), RunProgress(cursor=PromptCursor(next_index=0, untrained=()))
    deadline_s = config.training.start_deadline_s
    progress = RunProgress.from_json(ranks.call("load", str(resume_from), deadline_s=deadline_s)[0])
    return PolicyVersion(ranks.call("version", deadline_s=deadline_s)[0]), progress


def _go_on_from(checkpoint: Path | None, session: SessionRef) -> None:
    """What this run saved later belongs to a past that it does again."""
    if checkpoint is None or not checkpoint.is_relative_to(Path(session.run_dir).resolve()):
        return
    for later in set_aside_newer(checkpoint):
        logger.warning("%s was saved after the checkpoint that the run goes on from, and is kept under this name", later)


def _store_spec(config: LibraConfig) -> StoreSpec:
    loss = config.training.loss
    needs_all = loss.kl_coefficient > 0 or loss.entropy_coefficient > 0
    return StoreSpec(
        groups_per_step=config.rollout.groups_per_step,
        staleness=config.rollout.staleness,
        age_slack=config.rollout.age_slack,
        drop_groups_without_signal=loss.drop_without_signal and not needs_all,
    )


def require_memory(config: LibraConfig) -> None:
    """Refuse a start that would be killed for memory minutes later; raises `ResourceError`."""
    if config.backend.kind != "cpu":
        return
    free_gib = psutil.virtual_memory().available / 2**30
    if free_gib < config.backend.min_free_memory_gib:
        raise ResourceError(
            f"{free_gib:.1f} GiB of memory are free, but backend.min_free_memory_gib asks for "
            f"{config.backend.min_free_memory_gib:.1f}; end other programs, use fewer engines, or lower the bound"
        )


def resume_point(config: LibraConfig, report: Report) -> Path | None:
    """The checkpoint that the run goes on from, read through once; None for a fresh run. Says so where it is not the newest.

    Raises:
        CheckpointError: the run has none that is whole, or the one that is named is not.
    """
    folder = config.run.resumed_folder
    if folder is None:
        return None
    report("checking the checkpoint", 0.0)

    def say(sentence: str) -> None:
        logger.warning("%s", sentence)
        report(sentence, 0.0)

    return chosen_checkpoint(folder, config.run.resumed_checkpoint, say)


def _require_model(checkpoint: Path, model_folder: Path) -> None:
    if wrong := foreign_model(checkpoint, read_model_facts(model_folder)):
        raise CheckpointError(wrong)


def open_forecaster(config: LibraConfig, plan: Plan, model_folder: str) -> RunForecaster | None:
    """None, with the reason in the log, when neither side of the run has a law."""
    laws, missing = load_run_laws(config, plan, model_folder)
    if missing:
        logger.warning("forecasts of this run are incomplete: %s", "; ".join(missing))
    if not laws.engines and laws.trainer is None:
        return None
    logger.info("forecasts of this run: %s", "; ".join(laws.grounding))
    last_full_step = config.training.steps - 1 - config.rollout.staleness
    return RunForecaster(laws, half_life_steps=config.planner.half_life_steps, last_full_step=last_full_step)
