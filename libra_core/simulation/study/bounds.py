"""The bound that no system passes: all GPUs busy with useful work, full decode batches, no trajectory ever waited for."""

import numpy as np

from libra_core.simulation.study.config import StudyConfig
from libra_core.simulation.truth import EngineTruth, Truth
from libra_core.simulation.workload.trajectories import Trajectories

_SPLITS = 400
_MOST_RUNNING = 256


def fluid_tokens_per_s(study: StudyConfig, truth: Truth, work: Trajectories, blocks: int = 10) -> float:
    """Generated tokens per second when each of `blocks` stretches of the drift has the best continuous split and degree."""
    size = len(work) // study.batch // blocks * study.batch
    parts = [work.rows(block * size, (block + 1) * size) for block in range(blocks)]
    seconds = sum(_least_seconds(study, truth, part) for part in parts)
    return float(sum(part.generated.sum() for part in parts) / seconds)


def _least_seconds(study: StudyConfig, truth: Truth, work: Trajectories) -> float:
    linear, pairs = truth.trainer.flop_coefficients()
    flop = float((linear * work.total_tokens + pairs * work.total_tokens**2).sum())
    train_gpus = np.linspace(0.02, 0.98, _SPLITS) * study.gpus
    train_s = [flop / truth.trainer.flops(int(np.ceil(gpus)), 1) * np.ceil(gpus) / gpus for gpus in train_gpus]
    best = min(_engine_gpu_seconds(law, work) * tp for tp, law in truth.engines.items())
    rollout_s = best / (study.gpus - train_gpus)
    return float(np.maximum(np.array(train_s), rollout_s).min())


def _engine_gpu_seconds(law: EngineTruth, work: Trajectories) -> float:
    """Engine seconds for everything, with as many sequences in a step as the KV cache holds."""
    before, arriving = work.contexts()
    decode_context = float((work.generated * (before + arriving + work.generated / 2)).sum())
    generated = float(work.generated.sum())
    batch = max(1.0, min(float(_MOST_RUNNING), law.kv_tokens / (decode_context / generated)))
    decode = generated * (law.a_s / batch + law.b_s) + law.c_s * decode_context
    prefill = law.prefill_s * arriving + law.prefill_pair_s * arriving * (before + arriving / 2)
    return decode + float(prefill.sum())
