"""A training run replayed: the trajectories that it trained, in its order, under its own laws, on its plan or on another one.

A simulated run's laws are its truth table. A real run's are what it measured: training seconds per token (the share of groups
without signal included), fixed seconds of an iteration, publication; and for the engines the law that plans are made from, times
one factor with which the replayed fleet works as many seconds as the real one did. What the replay then predicts is how the two
sides wait for each other.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Any

import numpy as np

from libra_core.config import LibraConfig, plan_of
from libra_core.errors import ConfigError
from libra_core.simulation.backend import pacing_of
from libra_core.simulation.study.controllers import Static
from libra_core.simulation.study.run import drive
from libra_core.simulation.study.summary import Meter
from libra_core.simulation.truth import PublicationTruth, TrainerTruth, TransitionTruth, Truth, load_truth
from libra_core.simulation.workload.trajectories import Trajectories, from_records
from libra_core.simulation.world import World
from libra_core.types.laws import EngineLaw
from libra_core.types.lengths import LengthRecord
from libra_core.types.plan import Plan, RolloutLayout

_SKIPPED = 4
_FITS = 4
_MOST_SPLITS = 9
Row = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedRun:
    """Everything a replay needs."""

    config: LibraConfig
    truth: Truth
    work: Trajectories
    steps: int
    """Whose batches are replayed."""
    counted: tuple[int, int]
    """Steps `[first, end)` that are compared: neither the filling of the pipeline nor its end."""
    t_iter_s: float
    """Recorded mean over the counted steps."""
    laws: tuple[str, ...]
    """Where the truth comes from."""

    @property
    def plan(self) -> Plan:
        return plan_of(self.config)


def recorded_run(
    config: LibraConfig, rows: Sequence[Row], records: Sequence[LengthRecord], engines: Mapping[int, EngineLaw]
) -> RecordedRun:
    """From the configuration, the metrics and the length log of a run; `engines` are laws by degree up to a common factor, which
    a simulated run does not need. Raises `ConfigError` when steps or records are too few."""
    rollout = config.rollout
    batch = rollout.groups_per_step * rollout.group_size
    steps = min(len(records) // batch, len(rows))
    first, end = _SKIPPED, steps - rollout.staleness
    if end - first < _SKIPPED:
        raise ConfigError(
            f"the run holds {steps} whole steps of {batch} trajectories, and a replay needs {2 * _SKIPPED + rollout.staleness}: "
            f"{_SKIPPED} to fill the pipeline, {rollout.staleness} at its end; name a longer run"
        )
    counted = rows[first:end]
    run = RecordedRun(
        config=config,
        truth=load_truth(config.simulation.truth) if config.backend.kind == "simulated" else _measured(config, counted, engines),
        work=from_records(records[: steps * batch], rollout.group_size),
        steps=steps,
        counted=(first, end),
        t_iter_s=fmean(row["iteration/t_iter_s"] for row in counted),
        laws=(f"engines and trainer: {config.simulation.truth}, as in the run",),
    )
    return run if config.backend.kind == "simulated" else _with_engines_as_busy(run, counted)


def replay_on(run: RecordedRun, plan: Plan, config: LibraConfig | None = None) -> Meter:
    """The run's trajectories on `plan`, paced as `config` says, or as the run was."""
    world = World(run.truth, run.work, pacing_of(config or run.config), plan)
    return drive(world, Static(), min(run.counted[1], world.steps), run.counted[0])


def plans_on(run: RecordedRun, gpus: int, config: LibraConfig) -> list[Plan]:
    """Splits of `gpus` with the run's degrees: every number of replicas, thinned to nine."""
    plan = run.plan
    ((tp, _), *_) = plan.rollout.engines
    each, batch = plan.train.replica_gpus, config.rollout.groups_per_step * config.rollout.group_size
    in_turns = config.rollout.mode == "colocated"
    most = min((gpus if in_turns else gpus - tp) // each, batch)
    if most < 1 or gpus < tp:
        return []
    replicas = [most] if in_turns else sorted({round(x) for x in np.linspace(1, most, _MOST_SPLITS)})
    engines = [gpus // tp if in_turns else (gpus - dp * each) // tp for dp in replicas]
    return [
        Plan(train=replace(plan.train, dp=dp), rollout=RolloutLayout(engines=((tp, count),)))
        for dp, count in zip(replicas, engines, strict=True)
    ]


def _measured(config: LibraConfig, rows: Sequence[Row], engines: Mapping[int, EngineLaw]) -> Truth:
    total = sum(row["rollout/prompt_tokens"] + row["rollout/generated_tokens"] + row["rollout/tool_tokens"] for row in rows)
    busy_s = sum(row["train/forward_backward_s"] + row["train/logprob_s"] for row in rows)
    after_s = fmean(row["time/trainer_waits_publication_s"] + row["time/trainer_other_s"] for row in rows)
    return Truth(
        name=config.run.name,
        engines=dict(engines),
        trainer=TrainerTruth(
            parameters=1,
            attention_width=0,
            flops_per_parameter_token=1,
            flops_per_width_pair=0,
            peak_flops=total / busy_s / plan_of(config).train.num_gpus,
            mfu=1,
            fixed_s=fmean(row["train/optimizer_s"] for row in rows),
            streamed_time=1,
        ),
        publication=PublicationTruth(
            trainer_waits_s=after_s,  # what else keeps the trainer is mostly bookkeeping, while the engines run again
            engines_pause_s=fmean(row["time/fleet_paused_s"] for row in rows),
            recompute_kv=config.publication.recompute_kv,
        ),
        transitions=TransitionTruth(engine_start_s=0, trainer_rebuild_s=0, hybrid_engine_s=0, hybrid_trainer_s=0),
    )


def _with_engines_as_busy(run: RecordedRun, rows: Sequence[Row]) -> RecordedRun:
    """Stretch the engines until the replayed fleet works as long as the recorded one."""
    busy_s = fmean(row["time/fleet_busy_s"] + row["time/fleet_reprefill_s"] for row in rows)
    factor, fitted = 1.0, run
    for _ in range(_FITS):
        meter = replay_on(fitted, run.plan)
        summary = meter.summary(run.plan.num_gpus)
        share = summary.fleet_decode + summary.fleet_prefill + summary.fleet_reprefill
        factor *= busy_s / (share * summary.t_iter_s)
        engines = {tp: engine.scaled(factor) for tp, engine in run.truth.engines.items()}
        fitted = replace(run, truth=run.truth.model_copy(update={"engines": engines}))
    laws = (
        "trainer, publication and fixed times: measured in the run",
        f"engines: the law that plans are made from, times {factor:.2f} so that the fleet works {busy_s:.2f} s an iteration",
        "trainers of other sizes: perfect scaling of the measured one",
    )
    return replace(fitted, laws=laws)
