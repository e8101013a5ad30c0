"""Training throughput of llm-foundry (FSDP, MPT models) against the trainer's kernel sum.

The model was trained with fully sharded data parallelism and no tensor or pipeline parallelism, so the rows check compute, not
Megatron's communication. The device's `training_efficiency` is the median of these rows; to judge the forecast without its own
data, each model is forecast with the median of the *other* models.
"""

from collections import Counter
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np

from libra_core.costs.facts import DeviceProfile, ModelFacts
from libra_core.costs.layouts import TrainingLoad, TrainingShape
from libra_core.costs.profiles import with_values
from libra_core.costs.training import TrainingCosts
from libra_core.costs.validation.report import ValidationReport, figure
from libra_core.errors import ConfigError
from libra_core.files import CsvRow, csv_rows

BOUND = 0.15
_SHAPES = {
    "125m": (768, 12),
    "350m": (1024, 24),
    "760m": (1536, 24),
    "1b": (2048, 24),
    "3b": (2560, 32),
    "7b": (4096, 32),
    "13b": (5120, 40),
    "30b": (7168, 48),
    "70b": (8192, 80),
}
"""Width and layers of llm-foundry's MPT models."""
_VOCABULARY = 50368
_PRECISIONS = ("bf16", "amp_bf16")


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingRow:
    """One comparable row; `kernel_s` is the forecast at efficiency 1, `shared_s` what does not depend on the efficiency."""

    model: str
    measured_s: float
    kernel_s: float
    shared_s: float

    @property
    def efficiency(self) -> float:
        return self.kernel_s / max(self.measured_s - self.shared_s, 1e-9)

    def forecast_s(self, efficiency: float) -> float:
        return self.kernel_s / efficiency + self.shared_s


def validate_training(device: DeviceProfile, file: Path) -> ValidationReport:
    """Step time, which is to MFU as one over; raises `ConfigError` when no row is comparable."""
    left_out: Counter[str] = Counter()
    rows: list[TrainingRow] = []
    ideal = with_values(device, training_efficiency=1.0)
    for raw in csv_rows(file, "measurements"):
        reason = _not_comparable(raw, device)
        if reason:
            left_out[reason] += 1
        else:
            rows.append(_row(ideal, raw))
    if not rows:
        raise ConfigError(f"{file} has no comparable row: {dict(left_out)}")
    measured = [row.measured_s for row in rows]
    stored = figure("mfu_stored_efficiency", [row.forecast_s(device.training_efficiency) for row in rows], measured)
    crossed = figure(
        "mfu", [row.forecast_s(_others(rows, row.model)) for row in rows], measured, BOUND, "efficiency of the other models"
    )
    by_model = [
        figure(
            f"mfu {model}",
            [row.forecast_s(_others(rows, model)) for row in rows if row.model == model],
            [row.measured_s for row in rows if row.model == model],
        )
        for model in dict.fromkeys(row.model for row in rows)
    ]
    note = f"BF16 rows of this device without offloading; median efficiency {np.median([row.efficiency for row in rows]):.3f}"
    return ValidationReport(
        device=device.name,
        file=str(file),
        kind="training",
        figures=(crossed, stored, *by_model),
        comparable=note,
        left_out=dict(left_out),
    )


def _others(rows: list[TrainingRow], model: str) -> float:
    values = [row.efficiency for row in rows if row.model != model] or [row.efficiency for row in rows]
    return float(np.median(values))


def _not_comparable(raw: CsvRow, device: DeviceProfile) -> str:
    family = device.name.split("-", 1)[0].lower()
    if not raw["gpu"].lower().startswith(family):
        return f"on {raw['gpu']}"
    if raw["precision"].lower() not in _PRECISIONS:
        return f"precision {raw['precision']}"
    if raw["act_offload"] == "True":
        return "activation offloading"
    return "" if raw["model"] in _SHAPES else f"no shape of {raw['model']}"


@lru_cache(maxsize=32)
def _model(name: str) -> ModelFacts:
    width, layers = _SHAPES[name]
    heads = width // 128
    return ModelFacts(
        name=f"MPT-{name}",
        num_layers=layers,
        hidden_size=width,
        num_heads=heads,
        num_kv_heads=heads,
        head_dim=128,
        ffn_size=4 * width,
        vocab_size=_VOCABULARY,
        tied_embeddings=True,
        gated=False,
    )


def _row(device: DeviceProfile, raw: CsvRow) -> TrainingRow:
    length, gpus = (int(raw.number(name, above_zero=True)) for name in ("seq_len", "n_gpus"))
    micro_batch = int(raw.number("micro_bs", above_zero=True))
    sequences = micro_batch * int(raw.number("grad_accum", above_zero=True))
    recompute = raw["act_ckpt"] == "True"
    shape = TrainingShape(dp=gpus, micro_batch_tokens=micro_batch * length, recompute=recompute)
    load = TrainingLoad.of(np.full(sequences * gpus, float(length)))
    parts = _costs(device, raw["model"]).estimate(shape, load).parts
    return TrainingRow(
        model=raw["model"],
        measured_s=sequences * length / raw.number("tokens_s_gpu", above_zero=True),
        kernel_s=parts.forward_backward_s,
        shared_s=parts.optimizer_s,
    )


def _costs(device: DeviceProfile, model: str) -> TrainingCosts:
    return TrainingCosts(device, _model(model))
