"""A plan for people: tables, a picture of the nodes, and sentences."""

from itertools import groupby

from rich.table import Table
from rich.text import Text

from libra_core.planning.loading import LoadedProblem
from libra_core.planning.placement import TRAIN
from libra_core.planning.problem import Cluster
from libra_core.types.forecast import Candidate, GpuGroup, Mode, PlanReport, Term

MEANING = {
    Term.TRAINER: "the trainer",
    Term.FLEET: "the fleet's throughput",
    Term.SLOWEST_TRAJECTORY: "the slowest trajectory of a batch",
    Term.GROUP_LATENCY: "the latency of groups against the staleness bound",
}
_TRAIN_STYLE = "black on green3"
_ENGINE_STYLES = {1: "black on grey70", 2: "black on sky_blue2", 4: "black on orange1", 8: "black on plum2"}


def layout_text(candidate: Candidate) -> str:
    """GPUs and degrees of the trainer."""
    layout = candidate.plan.train
    extra = "".join(f" {name} {value}" for name, value in (("cp", layout.cp), ("ep", layout.ep)) if value > 1)
    return f"{layout.num_gpus}: tp {layout.tp}{extra} pp {layout.pp} dp {layout.dp}"


def fleet_text(candidate: Candidate) -> str:
    """GPUs and engines of the fleet."""
    rollout = candidate.plan.rollout
    engines = " + ".join(f"{count} x tp {tp}" for tp, count in rollout.engines)
    return f"{rollout.num_gpus}: {engines}"


def mode_text(candidate: Candidate) -> str:
    """The kind of step, or that the sides take turns."""
    return "colocated" if candidate.mode is Mode.COLOCATED else "streamed" if candidate.streamed else "whole step"


def forecast_table(report: PlanReport, loaded: LoadedProblem) -> Table:
    """The plan and what is expected of it."""
    best, forecast, regime = report.best, report.best.forecast, loaded.problem.regime
    table = Table(title="Plan", title_justify="left", show_header=False, box=None, padding=(0, 2))
    slots = ", ".join(f"{slots} (tp {tp})" for tp, slots in best.slots_per_engine)
    rows = {
        "cluster": f"{loaded.problem.cluster.num_gpus} x {loaded.device.name}, {loaded.model.name}",
        "batch": f"{regime.batch} trajectories, staleness η = {regime.staleness}, age slack X = {regime.age_slack}",
        "mode": best.mode.value + (", streamed step" if best.streamed else ""),
        "training GPUs": f"{layout_text(best)}, micro-batch of {best.plan.train.micro_batch_tokens:,} tokens",
        "rollout GPUs": fleet_text(best),
        "slots per engine": slots,
        "hybrid replicas": f"{best.plan.hybrid_replicas}",
        "T_train": f"{forecast.t_train_s:.1f} s",
        "T_rollout": f"{forecast.t_rollout_s:.1f} s (fleet), slowest trajectory {forecast.slowest_trajectory_s:.1f} s",
        "T_iter": f"{forecast.t_iter_s:.1f} s",
        "generated tokens/s": f"{forecast.tokens_per_s:,.0f}",
        "memory per GPU": f"training {_gb(forecast.train_bytes_per_gpu)}, engines {_gb(forecast.rollout_bytes_per_gpu)}",
    }
    for name, value in rows.items():
        table.add_row(name, value)
    return table


def _gb(count: float) -> str:
    return f"{count / 1e9:.1f} GB"


def runner_up_table(report: PlanReport) -> Table:
    """What came next."""
    table = Table(title="Runner-ups", title_justify="left", box=None, padding=(0, 1))
    for name in ("kind", "training GPUs", "rollout GPUs", "T_iter", "", "binds"):
        table.add_column(name)
    for item in report.runner_ups:
        slower = item.forecast.t_iter_s / report.best.forecast.t_iter_s - 1
        times = (f"{item.forecast.t_iter_s:.1f} s", f"{slower:+.1%}")
        table.add_row(mode_text(item), layout_text(item), fleet_text(item), *times, item.forecast.terms.binding.value)
    return table


def named_line(named: Candidate, best: Candidate) -> str:
    """A layout that was asked about, beside the best."""
    seconds, slower = named.forecast.t_iter_s, named.forecast.t_iter_s / best.forecast.t_iter_s - 1
    where = f"training on {layout_text(named)}, rollout on {fleet_text(named)}, {mode_text(named)}"
    return f"layout       {where}: T_iter {seconds:.1f} s ({slower:+.1%} against the best), {named.forecast.terms.binding} binds"


def verdict_lines(report: PlanReport, loaded: LoadedProblem, solve_s: float) -> list[str]:
    """What binds, what would relax it, and how far to trust it."""
    best = report.best
    terms = best.forecast.terms
    values = f"A {terms.trainer_s:.1f}  B {terms.fleet_s:.1f}  C {terms.slowest_s:.1f}  D {terms.group_s:.1f} s"
    lines = [f"binding      {terms.binding.value}, {MEANING[terms.binding]} ({values})"]
    for index, item in enumerate(report.relaxations):
        change = item.t_iter_s / best.forecast.t_iter_s - 1
        head = "would relax " if index == 0 else "            "
        lines.append(f"{head} {item.change}: T_iter {item.t_iter_s:.1f} s ({change:+.1%})")
    lines += [f"not runnable {reason}" for reason in report.against]
    lines += [f"note         {note}" for note in report.notes]
    lines.append("error        of T_iter: not measured; a run compares its forecasts and says by how much they were off")
    lines.append(f"grounding    device {loaded.device.grounding}; lengths {loaded.lengths_source}")
    if loaded.costs.uses_profile or loaded.costs.unused:
        lines.append(f"             engines: {loaded.costs.engine_grounding(best.plan)}")
        lines.append(f"             trainer: {loaded.costs.trainer_grounding(best.plan)}")
    lines.append(f"solved in    {solve_s * 1000:.0f} ms over {report.num_candidates} candidates")
    return lines


def explanation(report: PlanReport) -> list[str]:
    """What was cut, most frequent rule first."""
    lines = ["", "cut branches"]
    return lines + [f"  {item.count:>6}  {item.rule}, for example {item.example}" for item in report.pruned]


def node_map(report: PlanReport, cluster: Cluster) -> Table:
    """One line a node, alike neighbours together; a cell is a TP group."""
    table = Table(
        title="Nodes (a block is one TP group)",
        title_justify="left",
        show_header=False,
        box=None,
        padding=(0, 2),
    )
    groups: dict[int, list[GpuGroup]] = {}
    for group in report.placement:
        groups.setdefault(group.node, []).append(group)
    rows = [(_cells_of(groups.get(node, []), size), node) for node, size in enumerate(cluster.node_sizes)]
    for cells, members in groupby(rows, key=lambda item: item[0]):
        nodes = [node for _, node in members]
        name = f"node {nodes[0]}" if len(nodes) == 1 else f"nodes {nodes[0]}-{nodes[-1]}"
        table.add_row(name, _picture(cells))
    return table


def _cells_of(groups: list[GpuGroup], size: int) -> tuple[tuple[str, int], ...]:
    """`((role, GPUs), …)` from the first GPU on, idle ones included; in a shared node the trainer's view."""
    shared = {group.role for group in groups} and sum(len(group.gpus) for group in groups) > size
    shown = sorted((group for group in groups if not shared or group.role == TRAIN), key=lambda group: group.gpus)
    cells: list[tuple[str, int]] = []
    used = 0
    for group in shown:
        if group.gpus[0] > used:
            cells.append(("idle", group.gpus[0] - used))
        cells.append((group.role, len(group.gpus)))
        used = group.gpus[-1] + 1
    return tuple(cells) + ((("idle", size - used),) if used < size else ())


def _picture(cells: tuple[tuple[str, int], ...]) -> Text:
    text = Text()
    for role, size in cells:
        style = _TRAIN_STYLE if role == TRAIN else _ENGINE_STYLES.get(size, "black on plum2") if role != "idle" else "dim"
        label = {"train": f"train tp {size}", "engine": f"engine tp {size}", "idle": "idle"}[role]
        width = max(4 * size - 1, len(label) if size > 2 else 3 * size)
        text.append((label if len(label) <= width else label[0].upper() * size).center(width), style=style)
        text.append(" ")
    return text
