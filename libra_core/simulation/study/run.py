"""One system on one workload with one seed."""

import math
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from libra_core.planning.history_file import read_history
from libra_core.planning.lengths import LengthTable
from libra_core.simulation.study.beliefs import length_table_of
from libra_core.simulation.study.config import StudyConfig, SystemConfig
from libra_core.simulation.study.controllers import IdleRatio, Static, StudyController, StudyReplanner
from libra_core.simulation.study.routers import router_for
from libra_core.simulation.study.splits import Start, first_plan, grid
from libra_core.simulation.study.summary import Meter, Picture, SimulatedSummary, StepView
from libra_core.simulation.truth import Truth, load_truth
from libra_core.simulation.workload.generate import generate, levels
from libra_core.simulation.workload.laws import WorkloadLaw
from libra_core.simulation.workload.trajectories import Floats, Trajectories, resampled
from libra_core.simulation.world import NO_CAP, Pacing, World
from libra_core.types.decision import Decision
from libra_core.types.forecast import Mode
from libra_core.types.plan import Plan

_HISTORY_SEED, _HINDSIGHT_SEED = 990_000, 980_000
_HISTORY_STEPS, _HISTORY_GROUPS, _HINDSIGHT_STEPS = 8, 16, 24


@dataclass(frozen=True, slots=True, kw_only=True)
class SystemRun:
    """A run and what its figures need."""

    system: str
    workload: str
    seed: int
    summary: SimulatedSummary
    steps: tuple[StepView, ...]
    picture: Picture
    decisions: tuple[Decision, ...]
    first_plan: str
    cpu_s: float
    plan_cpu_s: float
    """Of one planning: of the first, and of every round that searched."""
    route_us: float
    """CPU time of one routing decision; nan without a router."""


def run_system(study: StudyConfig, name: str, system: SystemConfig, law: WorkloadLaw, seed: int) -> SystemRun:
    """Deterministic but for the CPU times."""
    began = time.process_time()
    truth = truth_of(study, system)
    history = initial_history(study, law)
    lengths = length_table_of(history)
    started = time.process_time()
    start = _hindsight(study, system, law, truth) if system.split == "hindsight" else first_plan(study, system, lengths)
    planned_s = [time.process_time() - started]
    work = workload(study, law, study.steps, seed)
    world = open_world(study, system, start, truth, work)
    world.router = router = router_for(system.router, start.plan, work, history, truth)
    controller = _controller(study, system, start, world, lengths)
    meter = drive(world, controller, study.steps, study.skipped_steps)
    return SystemRun(
        system=name,
        workload=law.name,
        seed=seed,
        summary=meter.summary(study.gpus),
        steps=tuple(meter.views()),
        picture=meter.picture(),
        decisions=tuple(controller.decisions) if isinstance(controller, StudyReplanner) else (),
        first_plan=plan_text(start),
        cpu_s=time.process_time() - began,
        plan_cpu_s=float(np.mean(planned_s + (controller.round_s if isinstance(controller, StudyReplanner) else []))),
        route_us=math.nan if router is None else router.decision_us(),
    )


def truth_of(study: StudyConfig, system: SystemConfig) -> Truth:
    """The study's, with what this system does worse than others."""
    truth = study.mismatch.applied(load_truth(study.path(study.truth)))
    if system.publication_s is None:
        return truth
    slow = {
        "trainer_waits_s": system.publication_s,
        "trainer_sends_s": None,
        "engines_pause_s": system.publication_s,
        "recompute_kv": True,
    }
    switch_s = max(truth.colocated_switch_s, system.publication_s)
    return truth.model_copy(update={"publication": truth.publication.model_copy(update=slow), "colocated_switch_s": switch_s})


def workload(study: StudyConfig, law: WorkloadLaw, steps: int, seed: int) -> Trajectories:
    """Enough trajectories for `steps` steps: drifting as the law says, or recorded ones drawn again."""
    return _drawn(study, law, levels(law.drift, steps), study.groups_per_step, seed)


def initial_history(study: StudyConfig, law: WorkloadLaw) -> Trajectories:
    """What systems plan their start with: other samples of the same kind, before any drift."""
    level = np.full(_HISTORY_STEPS, levels(law.drift, study.steps)[0])
    return _drawn(study, law, level, _HISTORY_GROUPS, _HISTORY_SEED)


def _drawn(study: StudyConfig, law: WorkloadLaw, level: Floats, groups_per_step: int, seed: int) -> Trajectories:
    """Of the law at each step's level, or without any drift from the study's history."""
    size = study.group_size
    if study.history is not None:
        return resampled(read_history(Path(study.history)), level.size * groups_per_step * size, size, seed)
    return generate(law, level, groups_per_step=groups_per_step, group_size=size, seed=seed)


def open_world(study: StudyConfig, system: SystemConfig, start: Start, truth: Truth, work: Trajectories) -> World:
    pacing = Pacing(
        batch=study.batch,
        group_size=study.group_size,
        staleness=0 if system.synchronous else study.staleness,
        age_slack=system.age_slack,
        streamed=start.streamed,
        colocated=start.candidate.mode is Mode.COLOCATED,
        kv_fill=NO_CAP if system.kv_fill is None else system.kv_fill,
        most_calls_first=system.most_calls_first,
        overlap=system.overlap,
    )
    return World(truth, work, pacing, start.plan)


def drive(world: World, controller: StudyController, steps: int, skipped: int) -> Meter:
    """Step by step to the end; the controller replans before every step but the first."""
    meter: Meter | None = None
    for version in range(1, steps + 1):
        if version > 1:
            controller.replan(world)
        if version == skipped + 1:
            meter = Meter(world)
        world.run_to(version)
        if meter is not None:
            meter.after_step()
    assert meter is not None, "a run needs more steps than are skipped"
    return meter


def plan_text(start: Start) -> str:
    """`32 = tp4 dp8 | 2 x tp8, streamed`."""
    kinds = (", streamed" if start.streamed else "") + (", in turns" if start.candidate.mode is Mode.COLOCATED else "")
    return layout_text(start.plan) + kinds


def layout_text(plan: Plan) -> str:
    """`32 = tp4 dp8 | 2 x tp8`."""
    train = plan.train
    shape = " ".join(f"{name}{value}" for name, value in (("tp", train.tp), ("pp", train.pp), ("dp", train.dp)) if value > 1)
    engines = ", ".join(f"{count} x tp{tp}" for tp, count in plan.rollout.engines)
    return f"{train.num_gpus} = {shape or 'tp1'} | {engines}"


def _controller(study: StudyConfig, system: SystemConfig, start: Start, world: World, lengths: LengthTable) -> StudyController:
    if system.replanning == "planner":
        return StudyReplanner(study, system, start, world)
    if system.replanning == "idle_ratio":
        return IdleRatio(study=study, system=system, start=start, truth=world.truth.transitions, lengths=lengths)
    return Static()


def _hindsight(study: StudyConfig, system: SystemConfig, law: WorkloadLaw, truth: Truth) -> Start:
    """The start whose simulated runs over the whole drift, on a seed of their own, are fastest."""
    level = levels(law.drift, study.steps)[np.linspace(0, study.steps - 1, _HINDSIGHT_STEPS).astype(int)]
    work = _drawn(study, law, level, study.groups_per_step, _HINDSIGHT_SEED)
    best, least = None, math.inf
    for start in grid(study, system, length_table_of(work)):
        world = open_world(study, system, start, truth, work)
        world.run_to(_HINDSIGHT_STEPS)
        if world.now_s < least:
            best, least = start, world.now_s
    assert best is not None
    return best
