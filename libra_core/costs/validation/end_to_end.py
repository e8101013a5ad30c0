"""End-to-end serving measurements (TTFT and TPOT by concurrency) against the sum of kernels. Nothing here is fitted to TPOT.

A client holds `c` requests of `isl` prompt and `osl` generated tokens in flight. Between two tokens of one request the engine
does one decode step for all, and over its life it prefills c-1 others: `TPOT = step(c) + (c-1)·prefill(isl)/osl`.
TTFT depends on how many prompts the client sends at the same instant, which the files do not say. Reported are a forecast for a
request that arrives alone, and one whose two queueing constants of the client come from the rows of the *other* tp degrees.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path

import numpy as np

from libra_core.costs.facts import DeviceProfile, ModelFacts
from libra_core.costs.profiles import load_model
from libra_core.costs.rollout import RolloutCosts
from libra_core.costs.validation.report import Figure, ValidationReport, figure
from libra_core.errors import ConfigError
from libra_core.files import CsvRow, csv_rows

TPOT_BOUND, TTFT_BOUND = 0.15, 0.25
_LEAST_ROWS = 4
COMPARABLE = (
    "dense models on one aggregated engine without pipeline stages, labelled fp8, or unlabelled and then served in the BF16 of "
    "the published weights: every kernel of such a step was measured. Experts are forecast apart, without a bound (no kernel of "
    "theirs was measured on Hopper). Not comparable: FP4 and INT4 (no kernel here), disaggregated serving and Dynamo front ends "
    "(concurrency counts over several engines)"
)
_USUAL_BURST = (1.5, 0.0625)
"""α and β where no other row tells: an eighth of the requests arrive in one opening burst, the others meet half a prompt."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedRow:
    """One comparable row."""

    model: ModelFacts
    tp: int
    concurrency: float
    prompt_tokens: float
    generated_tokens: float
    ttft_s: float
    tpot_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedForecast:
    row: ServedRow
    tpot_s: float
    alone_ttft_s: float
    saturated: bool
    """The requests in flight exceed the KV cache: TTFT is time in a queue whose arrivals the file does not give."""


def validate_end_to_end(device: DeviceProfile, file: Path) -> ValidationReport:
    """Raises `ConfigError` when no row is comparable."""
    left_out: Counter[str] = Counter()
    rows: list[ServedRow] = []
    for raw in csv_rows(file, "measurements"):
        reason = _not_comparable(raw)
        if reason:
            left_out[reason] += 1
        else:
            rows.append(_served(raw))
    engines = lru_cache(maxsize=None)(lambda model: RolloutCosts(device, model))
    impossible = [row for row in rows if not engines(row.model).fits(row.tp).fits]
    left_out.update(engines(row.model).fits(row.tp).reason for row in impossible)
    forecasts = [_forecast(engines(row.model), row) for row in rows if row not in impossible]
    if not forecasts:
        raise ConfigError(f"{file} has no comparable row: {dict(left_out)}")
    return ValidationReport(
        device=device.name,
        file=str(file),
        kind="end_to_end",
        figures=(*_tpot_figures(forecasts), *_ttft_figures(forecasts)),
        comparable=COMPARABLE,
        left_out=dict(left_out),
    )


def _not_comparable(raw: CsvRow) -> str:
    if raw.get("backend", "vllm") != "vllm":
        return f"served by {raw['backend']}"
    if raw["mode"] != "agg":
        return "disaggregated serving"
    if "dynamo" in raw["silicon_data_source"]:
        return "Dynamo front end over several engines"
    if raw["precision"] not in ("", "fp8", "bf16"):
        return f"{raw['precision']} weights"
    if raw["pp_size"] and raw.number("pp_size") != 1:
        return "pipeline stages"
    if not (raw["silicon_tpot_ms"] and raw["silicon_ttft_ms"] and raw["batch_size"] and raw["tp_size"]):
        return "no measurement"
    try:
        load_model(raw["model_path"])
    except ConfigError:
        return f"no facts of {raw['model_path']} in configs/model"
    return ""


def _served(raw: CsvRow) -> ServedRow:
    model = load_model(raw["model_path"])
    return ServedRow(
        model=replace(model, weight_dtype="fp8") if raw["precision"] == "fp8" else model,
        tp=int(raw.number("tp_size", above_zero=True)),
        concurrency=raw.number("batch_size", above_zero=True),
        prompt_tokens=raw.number("isl", above_zero=True),
        generated_tokens=raw.number("osl", above_zero=True),
        ttft_s=raw.number("silicon_ttft_ms", above_zero=True) / 1e3,
        tpot_s=raw.number("silicon_tpot_ms", above_zero=True) / 1e3,
    )


def _forecast(engine: RolloutCosts, row: ServedRow) -> ServedForecast:
    room = engine.kv_tokens(row.tp) / (row.prompt_tokens + row.generated_tokens)
    running = min(row.concurrency, room)
    context = row.prompt_tokens + row.generated_tokens / 2
    step = float(engine.decode_step_s(row.tp, running, context)[0])
    prefill = float(engine.prefill_pass_s(row.tp, row.prompt_tokens)[0])
    return ServedForecast(
        row=row,
        tpot_s=step + (running - 1) * prefill / row.generated_tokens,
        alone_ttft_s=step / 2 + prefill,
        saturated=row.concurrency > room,
    )


def _tpot_figures(forecasts: Sequence[ServedForecast]) -> list[Figure]:
    def of(chosen: Sequence[ServedForecast], name: str, bound: float | None = None) -> Figure:
        return figure(name, [item.tpot_s for item in chosen], [item.row.tpot_s for item in chosen], bound, "nothing fitted")

    dense = [item for item in forecasts if not item.row.model.is_moe]
    figures = [of(dense, "tpot", TPOT_BOUND)] if dense else []
    for key in sorted({(item.row.model.name, item.row.model.weight_dtype, item.row.tp) for item in forecasts}):
        chosen = [item for item in forecasts if (item.row.model.name, item.row.model.weight_dtype, item.row.tp) == key]
        figures.append(of(chosen, f"tpot {key[0]} {key[1]} tp{key[2]}"))
    return figures


def _ttft_figures(forecasts: Sequence[ServedForecast]) -> list[Figure]:
    open_rows = [item for item in forecasts if not item.saturated]
    if not open_rows:
        return []
    measured = [item.row.ttft_s for item in open_rows]
    alone = figure("ttft_alone", [item.alone_ttft_s for item in open_rows], measured, note="nothing fitted; no other arrivals")
    dense = [item for item in open_rows if not item.row.model.is_moe]
    if not dense:
        return [alone]
    note = "two constants of the client's burst, from the other tp degrees of the same model (else of any model, else the usual)"
    queued = [item.alone_ttft_s * _burst(item, dense) for item in dense]
    return [alone, figure("ttft", queued, [item.row.ttft_s for item in dense], TTFT_BOUND, note)]


def _burst(item: ServedForecast, rows: Sequence[ServedForecast]) -> float:
    """`α + β·c`, how much longer than alone a first token takes; never from rows of the same model and degree."""
    others = [other for other in rows if other.row.model == item.row.model and other.row.tp != item.row.tp]
    others = others if len(others) >= _LEAST_ROWS else [other for other in rows if other.row.model != item.row.model]
    solution = np.asarray(_USUAL_BURST)
    if len(others) >= _LEAST_ROWS:
        design = np.array([[1.0, other.row.concurrency] for other in others])
        ratios = np.array([other.row.ttft_s / other.alone_ttft_s for other in others])
        solution = np.linalg.lstsq(design / ratios[:, None], np.ones(len(ratios)), rcond=None)[0]
    return float(solution @ [1.0, item.row.concurrency])
