"""Simple laws of cost and small problems for planner tests; nothing here knows `libra_core.costs` beyond its value types."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from libra_core.costs.api import (
    EngineLaws,
    Fit,
    TrainerLaw,
    TrainEstimate,
    TrainingLoad,
    TrainingShape,
    TrainMemory,
    TrainTimeParts,
)
from libra_core.planning.lengths import LengthTable, table_of
from libra_core.planning.problem import Cluster, Costs, ModelShape, PlanningProblem, Regime
from libra_core.types.laws import EngineLaw

STUDY = {
    1: (21.0e-3, 41e-6, 0.112e-6, 140e-6, 241_000),
    2: (12.4e-3, 47e-6, 0.056e-6, 91e-6, 662_000),
    4: (7.8e-3, 44e-6, 0.029e-6, 64e-6, 1_505_000),
    8: (5.8e-3, 40e-6, 0.0145e-6, 49e-6, 3_189_000),
}
"""Qwen3-14B by degree: a, b, c, prefill seconds per token, KV tokens (docs/measurements.md#engines-and-trainer-on-an-a800)."""


def engines_of(table: Mapping[int, tuple[float, float, float, float, int]]) -> EngineLaws:
    """Engines from a table as `STUDY`."""
    return EngineLaws(
        of={
            tp: EngineLaw(
                a_s=a, b_s=b, c_s=c, prefill_b_s_per_token=prefill, prefill_c_s_per_token2=prefill / 40_000, kv_tokens=kv_tokens
            )
            for tp, (a, b, c, prefill, kv_tokens) in table.items()
        }
    )


@dataclass(frozen=True, slots=True)
class PlainTrainer:
    """Work divides by GPUs at an efficiency that falls with their number; state of `state_bytes` must fit `gpu_bytes` each."""

    seconds_per_token: float = 8 * 14.8e9 / (312e12 * 0.42)
    state_bytes: float = 236e9
    gpu_bytes: float = 74e9
    fixed_s: float = 4.0

    @property
    def law(self) -> TrainerLaw:
        return TrainerLaw(shape_fit=self.shape_fit, evaluate=self.estimate)

    def shape_fit(self, shape: TrainingShape) -> Fit:
        return Fit(fits=True)

    def estimate(self, shape: TrainingShape, load: TrainingLoad) -> TrainEstimate:
        n = shape.num_gpus
        compute = self.seconds_per_token * (load.tokens + 7e-6 * load.squared_tokens) / n / max(1 - 0.0036 * n, 0.3)
        tp_s = compute * 0.04 * (shape.tp - 1)
        micro = max(1, round(load.tokens / shape.dp / shape.micro_batch_tokens))
        bubble = (shape.pp - 1) / (micro + shape.pp - 1)
        bytes_each = self.state_bytes / n + 2e9 * shape.micro_batch_tokens / 4096 / shape.tp / shape.cp
        parts = TrainTimeParts(
            forward_backward_s=compute,
            tp_communication_s=tp_s,
            ep_communication_s=0.0,
            bubble_s=compute * bubble / (1 - bubble),
            pp_transfer_s=0.0,
            dp_exposed_s=0.0,
            optimizer_s=self.fixed_s,
            logprob_s=0.0,
        )
        total = (compute + tp_s) / (1 - bubble) + self.fixed_s
        fits = bytes_each <= self.gpu_bytes
        return TrainEstimate(
            t_train_s=total,
            parts=parts,
            memory=TrainMemory(
                weights_bytes=bytes_each,
                gradients_bytes=0.0,
                optimizer_bytes=0.0,
                activations_bytes=0.0,
                logits_bytes=0.0,
                workspace_bytes=0.0,
            ),
            num_micro_batches=micro,
            bubble_share=bubble,
            tp_share=tp_s / total,
            fit=Fit(fits=fits, reason="" if fits else f"{bytes_each / 1e9:.0f} GB per GPU, {self.gpu_bytes / 1e9:.0f} allowed"),
        )


def costs(
    trainer: PlainTrainer | None = None,
    table: Mapping[int, tuple[float, float, float, float, int]] = STUDY,
    publication_s: float = 4.0,
) -> Costs:
    """Engines of the table, the trainer's law, and publications of one length."""
    return Costs(
        engines=engines_of(table),
        trainer=(trainer or PlainTrainer()).law,
        publication_s=lambda _train, _engines: publication_s,
    )


def heavy_tailed(num: int, seed: int = 0, *, scale: float = 1.0) -> LengthTable:
    """Agent-like trajectories: log-normal turns, mean about 5,000 generated tokens times `scale`."""
    random = np.random.default_rng(seed)
    turns = np.clip(np.rint(12 * np.exp(0.6 * random.normal(size=num))), 1, 50)
    generated = np.clip(np.rint(turns * 300 * scale * np.exp(0.6 * random.normal(size=num))), 16, 30_000)
    prompt = np.rint(2500 * np.exp(0.3 * random.normal(size=num)))
    tool_tokens = np.rint(np.minimum((turns - 1) * 420, 7_000))
    tool_s = (turns - 1) * 2.0
    mean_context = prompt + (generated + tool_tokens) / 2
    pairs = (prompt + tool_tokens) * mean_context
    rows = np.stack([generated, turns, prompt, tool_tokens, tool_s, pairs, generated * mean_context], axis=1)
    return table_of(rows, np.ones(num))


def problem(num_gpus: int = 48, requests: int = 256, **changes: object) -> PlanningProblem:
    """Qwen3-14B-like on A800-like; `changes` replace fields of the problem, or of its regime when it has them."""
    regime = {"batch": requests, "group_size": 16}
    names = set(Regime.__dataclass_fields__)
    regime |= {name: value for name, value in changes.items() if name in names}
    others = {name: value for name, value in changes.items() if name not in names}
    fields: dict[str, object] = {
        "cluster": Cluster(num_gpus=num_gpus),
        "model": ModelShape(num_layers=40, weight_bytes=29.5e9, kv_bytes_per_token=163_840),
        "lengths": heavy_tailed(requests),
        "costs": costs(),
    }
    return PlanningProblem(**(fields | {"regime": Regime(**regime)} | others))  # type: ignore[arg-type]
