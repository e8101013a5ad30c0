"""Small simulated worlds: simple laws of truth and hand-made trajectories."""

from collections.abc import Sequence

import numpy as np

from libra_core.simulation.truth import PublicationTruth, TrainerTruth, TransitionTruth, Truth
from libra_core.simulation.workload.trajectories import Trajectories, from_records
from libra_core.simulation.world import Pacing, World
from libra_core.types.laws import EngineLaw
from libra_core.types.lengths import LengthRecord
from libra_core.types.plan import Plan, RolloutLayout, TrainLayout

ENGINE = EngineLaw(
    a_s=0.012, b_s=4.7e-5, c_s=5.6e-8, prefill_b_s_per_token=8.5e-5, prefill_c_s_per_token2=2.9e-9, kv_tokens=660_000
)


def truth(engine: EngineLaw = ENGINE, *, publication_s: float = 0.0, fixed_s: float = 4.0) -> Truth:
    """Every degree has the same engine."""
    return Truth(
        name="test",
        engines=dict.fromkeys((1, 2, 4, 8), engine),
        trainer=TrainerTruth(
            parameters=14.8e9,
            attention_width=204_800,
            flops_per_parameter_token=8,
            flops_per_width_pair=8,
            peak_flops=312e12,
            mfu=0.42,
            fixed_s=fixed_s,
        ),
        publication=PublicationTruth(trainer_waits_s=publication_s, engines_pause_s=publication_s),
        transitions=TransitionTruth(engine_start_s=30, trainer_rebuild_s=60, hybrid_engine_s=15, hybrid_trainer_s=2),
    )


def single_turns(generated: Sequence[float], prompt: float, group_size: int = 2) -> Trajectories:
    records = [LengthRecord(prompt_tokens=int(prompt), generated_tokens=(int(value),)) for value in generated]
    return from_records(records, group_size)


def agents(count: int, seed: int = 0, group_size: int = 4, tool_s: float = 2.0) -> Trajectories:
    """Log-normal turns with tools."""
    random = np.random.default_rng(seed)
    records: list[LengthRecord] = []
    for _ in range(count):
        turns = int(np.clip(random.lognormal(1.2, 0.6), 1, 12))
        records.append(
            LengthRecord(
                prompt_tokens=int(random.integers(50, 400)),
                generated_tokens=tuple(int(value) for value in np.maximum(random.lognormal(5, 0.8, turns), 8)),
                tool_tokens=tuple(int(value) for value in random.integers(10, 600, turns - 1)),
                tool_s=tuple(float(value) for value in tool_s * random.lognormal(0, 1, turns - 1)),
            )
        )
    return from_records(records, group_size)


def plan(engines: int = 2, tp: int = 2, train_gpus: int = 8) -> Plan:
    return Plan(train=TrainLayout(tp=4, dp=train_gpus // 4), rollout=RolloutLayout(engines=((tp, engines),)))


def pacing(batch: int, group_size: int = 4, **changes: object) -> Pacing:
    return Pacing(batch=batch, group_size=group_size, **changes)  # type: ignore[arg-type]


def finished(
    work: Trajectories, how: Pacing, layout: Plan, *, world_truth: Truth | None = None, steps: int | None = None
) -> World:
    """A world that has run all the steps its trajectories are enough for."""
    world = World(world_truth or truth(), work, how, layout)
    world.run_to(steps or world.steps)
    return world
