"""The bound that no system passes: terms A and B alone, so that no trajectory is ever waited for.

The terms are those of docs/planner.md#what-is-minimised.

All GPUs do useful work in full decode batches, split in any fraction; training runs in the fastest layout that any number of them
admits. What each step costs whatever the lengths are is charged: the optimizer, and of the publication what the trainer sends and
the engines pause for.
"""

import numpy as np

from libra_core.planning.candidates import search_inputs, train_leaves
from libra_core.planning.training_tree import Cuts
from libra_core.simulation.study.beliefs import length_table_of, problem
from libra_core.simulation.study.config import StudyConfig, SystemConfig
from libra_core.simulation.truth import Truth
from libra_core.simulation.workload.trajectories import Trajectories
from libra_core.simulation.world import MOST_RUNNING, bubble_share
from libra_core.types.laws import EngineLaw

_SPLITS = 400


def fluid_tokens_per_s(study: StudyConfig, truth: Truth, work: Trajectories, blocks: int = 10) -> float:
    """Generated tokens per second when each of `blocks` stretches of the drift has the best continuous split and degree."""
    size = len(work) // study.batch // blocks * study.batch
    parts = [work.rows(block * size, (block + 1) * size) for block in range(blocks)]
    slowdown = _least_slowdown(study, truth, work)
    seconds = sum(_least_seconds(study, truth, part, slowdown) for part in parts)
    return float(sum(part.generated.sum() for part in parts) / seconds)


def _least_slowdown(study: StudyConfig, truth: Truth, work: Trajectories) -> float:
    """By tensor parallelism and pipeline bubbles, of the best layout that fits any number of GPUs."""
    inputs = search_inputs(problem(study, SystemConfig(about="any"), length_table_of(work)), Cuts())
    layouts = [leaf.layout for leaf in train_leaves(inputs, Cuts()).run.values()]
    tokens = float(work.total_tokens.mean()) * study.batch
    return min(truth.trainer.tp_time[layout.tp] / (1.0 - bubble_share(layout, tokens)) for layout in layouts)


def _least_seconds(study: StudyConfig, truth: Truth, work: Trajectories, slowdown: float) -> float:
    linear, pairs = truth.trainer.flop_coefficients()
    flop = float((linear * work.total_tokens + pairs * work.total_tokens**2).sum()) * slowdown / truth.trainer.tp_time[1]
    train_gpus = np.linspace(0.02, 0.98, _SPLITS) * study.gpus
    train_s = [flop / truth.trainer.flops(int(np.ceil(gpus)), 1, batch=study.batch) * np.ceil(gpus) / gpus for gpus in train_gpus]
    best = min(_engine_gpu_seconds(law, work) * tp for tp, law in truth.engines.items())
    rollout_s = best / (study.gpus - train_gpus)
    steps, publication = len(work) / study.batch, truth.publication
    each_train_s = steps * (truth.trainer.fixed_s + publication.keeps_trainer_s(overlap=True))
    return float(np.maximum(np.array(train_s) + each_train_s, rollout_s + steps * publication.engines_pause_s).min())


def _engine_gpu_seconds(law: EngineLaw, work: Trajectories) -> float:
    """Engine seconds for everything, with as many sequences in a step as the KV cache holds."""
    before, arriving = work.contexts()
    decode_context = float((work.generated * (before + arriving + work.generated / 2)).sum())
    generated = float(work.generated.sum())
    batch = max(1.0, min(float(MOST_RUNNING), law.kv_tokens / (decode_context / generated)))
    decode = generated * (law.a_s / batch + law.b_s) + law.c_s * decode_context
    prefill = law.prefill_b_s_per_token * arriving + law.prefill_c_s_per_token2 * arriving * (before + arriving / 2)
    return decode + float(prefill.sum())
