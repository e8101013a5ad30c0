"""Figures of a study, drawn from its results alone."""

from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

_CUMULATIVE = (
    "verl_static_uniform",
    "ablation_1_planner",
    "ablation_2_mixed",
    "ablation_3_routing",
    "ablation_4_elastic",
    "ablation_5_streamed",
    "ablation_6_two_bounds",
    "libra",
)
_TIMELINE = ("areal_static_optimal", "dynamic", "libra")
_GANTT = ("verl_colocated", "areal_static_optimal", "dynamic", "libra")
_OURS, _OTHERS = "#1f6fb2", "#9aa5b1"


def draw_figures(results: Mapping[str, Any], runs: Sequence[Mapping[str, Any]], folder: Path) -> list[Path]:
    """Throughput bars, ablation, timeline and Gantt as PNG; a figure whose systems are not in the study is left out."""
    folder.mkdir(parents=True, exist_ok=True)
    made = {
        "throughput": _throughput(results["rows"]),
        "ablation": _ablation(results["rows"]),
        "timeline": _timeline(runs),
        "gantt": _gantt(runs),
    }
    sweeps = results["study"].get("sweeps", {})
    made |= {f"sweep_{name}": _sweep(points, str(sweeps[name]["about"])) for name, points in results.get("sweeps", {}).items()}
    return [_save(figure, folder / f"{name}.png") for name, figure in made.items() if figure is not None]


def _throughput(rows: Sequence[Mapping[str, Any]]) -> Figure | None:
    figure, axes = _figure(len(_workloads(rows)), 0.28 * len({row["system"] for row in rows}) + 1.2)
    for axis, workload in zip(axes, _workloads(rows), strict=True):
        chosen = [row for row in rows if row["workload"] == workload][::-1]
        rates = [row["tokens_per_s"] for row in chosen]
        errors = [[rate["mean"] - rate["low"] for rate in rates], [rate["high"] - rate["mean"] for rate in rates]]
        colors = [_OURS if str(row["system"]).startswith("libra") else _OTHERS for row in chosen]
        axis.barh([row["system"] for row in chosen], [rate["mean"] for rate in rates], xerr=errors, color=colors)
        axis.set_title(f"{workload}: tokens trained per second", fontsize=9)
        axis.tick_params(labelsize=7)
    return figure


def _ablation(rows: Sequence[Mapping[str, Any]]) -> Figure | None:
    steps = [name for name in _CUMULATIVE if any(row["system"] == name for row in rows)]
    if len(steps) < 3:
        return None
    figure, axes = _figure(len(_workloads(rows)), 3.2)
    for axis, workload in zip(axes, _workloads(rows), strict=True):
        rates = {row["system"]: row["tokens_per_s"]["mean"] for row in rows if row["workload"] == workload}
        values = [rates[name] for name in steps]
        below = [0.0, *(min(before, after) for before, after in pairwise(values))]
        heights = [values[0], *(abs(after - before) for before, after in pairwise(values))]
        axis.bar(steps, heights, bottom=below, color=[_OTHERS, *[_OURS] * (len(steps) - 1)])
        axis.set_title(workload, fontsize=9)
        axis.tick_params(axis="x", labelrotation=60, labelsize=7)
    return figure


def _timeline(runs: Sequence[Mapping[str, Any]]) -> Figure | None:
    chosen = [run for run in runs if run["seed"] == 1 and run["system"] in _TIMELINE]
    if not chosen:
        return None
    workloads = _workloads(chosen)
    figure, axes = _figure(2 * len(workloads), 2.6)
    for place, workload in enumerate(workloads):
        times, plans = axes[2 * place], axes[2 * place + 1]
        for run in [run for run in chosen if run["workload"] == workload]:
            steps = [step["step"] for step in run["steps"]]
            times.plot(steps, [step["t_iter_s"] for step in run["steps"]], linewidth=0.8, label=f"{run['system']} T_iter")
            times.plot(steps, [step["t_train_s"] for step in run["steps"]], linewidth=0.8, linestyle=":")
            plans.plot(steps, [step["train_gpus"] for step in run["steps"]], label=run["system"])
        times.set_title(f"{workload}: T_iter (line) and T_train (dots), s", fontsize=9)
        plans.set_title(f"{workload}: training GPUs", fontsize=9)
        times.legend(fontsize=6)
    return figure


def _gantt(runs: Sequence[Mapping[str, Any]]) -> Figure | None:
    chosen = [run for run in runs if run["picture"] is not None and run["system"] in _GANTT]
    if not chosen:
        return None
    figure, axes = _figure(len(chosen), 2.4)
    for axis, run in zip(axes, chosen, strict=True):
        spans = run["picture"]["trajectories"]
        starts, widths = [start for start, _ in spans], [end - start for start, end in spans]
        axis.barh(range(len(spans)), widths, left=starts, height=1.0, color=_OTHERS)
        began, ended = run["picture"]["train_s"]
        axis.axvspan(began, ended, alpha=0.25, color=_OURS)
        axis.set_title(f"{run['workload']}, {run['system']}: trajectories of one step (grey), training (blue), s", fontsize=8)
    return figure


def _sweep(points: Sequence[Mapping[str, Any]], about: str) -> Figure:
    """Tokens per second over the baseline, one plot a workload, one line a system."""
    rows = [(str(point["label"]), row) for point in points for row in point["rows"]]
    workloads = _workloads([row for _, row in rows])
    figure, axes = _figure(len(workloads), 2.6)
    for axis, workload in zip(axes, workloads, strict=True):
        for system in dict.fromkeys(str(row["system"]) for _, row in rows):
            chosen = [
                (label, row["over_baseline"]) for label, row in rows if (row["workload"], row["system"]) == (workload, system)
            ]
            means = [ratio["mean"] for _, ratio in chosen]
            below = [ratio["mean"] - ratio["low"] for _, ratio in chosen]
            above = [ratio["high"] - ratio["mean"] for _, ratio in chosen]
            labels = [label for label, _ in chosen]
            axis.errorbar(labels, means, yerr=[below, above], marker="o", linewidth=1.0, capsize=2, label=system)
        axis.set_title(f"{workload}: over {points[-1]['baseline']}", fontsize=9)
        axis.set_xlabel(about, fontsize=8)
        axis.legend(fontsize=6)
    return figure


def _workloads(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    return list(dict.fromkeys(str(row["workload"]) for row in rows))


def _figure(plots: int, height: float) -> tuple[Figure, list[Axes]]:
    """Plots above one another; drawn without a display."""
    figure = Figure(figsize=(8.0, height * plots), layout="constrained")
    FigureCanvasAgg(figure)
    return figure, [figure.add_subplot(plots, 1, place + 1) for place in range(plots)]


def _save(figure: Figure, path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)
    return path
