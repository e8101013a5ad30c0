"""What a person sees in the terminal. Everything but the final JSON line goes to stderr."""

from collections.abc import Mapping
from contextlib import AbstractContextManager
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TaskProgressColumn, TextColumn, TimeElapsedColumn
from rich.table import Table

from flows.views.board import iteration_line
from flows.views.start_pace import StartPace
from libra_core.tracking.summary import RunSummary
from libra_core.types.reports import IterationReport


class PlainBoard(AbstractContextManager["PlainBoard"]):
    """One line per event, for logs and pipes; of a long phase one every ten seconds."""

    def __init__(self, console: Console, pace: StartPace) -> None:
        self._console = console
        self.pace = pace

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None: ...

    def phase(self, name: str, fraction: float) -> None:
        progress = self.pace.hear(name, fraction)
        if progress.is_news:
            self._console.print(progress.line, highlight=False, soft_wrap=True, markup=False)

    def iteration(self, report: IterationReport, total: int) -> None:
        self._console.print(iteration_line(report, total), highlight=False, soft_wrap=True)


class BarBoard(AbstractContextManager["BarBoard"]):
    """Two bars: the start, which is named after what is being started, and the iterations."""

    def __init__(self, console: Console, pace: StartPace) -> None:
        self.pace = pace
        self._progress = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            TaskProgressColumn(),
            TimeElapsedColumn(),
            TextColumn("{task.fields[note]}", markup=False),
            console=console,
        )
        self._start: TaskID | None = None
        self._iterations: TaskID | None = None

    def __enter__(self) -> "BarBoard":
        self._progress.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._progress.stop()

    def phase(self, name: str, fraction: float) -> None:
        if self._start is None:
            self._start = self._progress.add_task(name, total=1.0, note="")
        expected = self.pace.hear(name, fraction).expected
        self._progress.update(self._start, description=name, completed=fraction, note=expected)

    def iteration(self, report: IterationReport, total: int) -> None:
        if self._iterations is None:
            self._iterations = self._progress.add_task("iterations", total=total, note="")
        done = report.step + 1
        note = (
            f"{done}/{total}  reward {report.reward.mean:.3f}  {report.tokens_per_s:.0f} tokens/s  T_iter {report.t_iter_s:.1f} s"
        )
        self._progress.update(self._iterations, completed=done, note=note)


def make_board(console: Console, last_times: Mapping[str, float] | None = None) -> PlainBoard | BarBoard:
    """Bars in a terminal, lines elsewhere. `last_times`: seconds that the phases of the last start took."""
    pace = StartPace(last_times)
    return BarBoard(console, pace) if console.is_terminal else PlainBoard(console, pace)


def summary_table(summary: RunSummary) -> Table:
    """The end of a run, for people."""
    table = Table(title="Run summary", title_justify="left", show_header=False, box=None, padding=(0, 2))
    rows = {
        "steps": f"{summary.steps}",
        "mean reward, first 5 iterations": f"{summary.reward_first_5:.3f}",
        "mean reward, last 5 iterations": f"{summary.reward_last:.3f}",
        "generated tokens/s": f"{summary.tokens_per_s:.0f}",
        "T_rollout": f"{summary.t_rollout_s:.2f} s per iteration",
        "T_train": f"{summary.t_train_s:.2f} s per iteration",
        "T_iter": f"{summary.t_iter_s:.2f} s",
        "overlap": f"{summary.overlap_fraction:.0%} of training time",
        **{f"held-out {name.replace('_', ' ')}": f"{value:.3f}" for name, value in summary.heldout.items()},
    }
    for name, value in rows.items():
        table.add_row(name, value)
    return table


def where_to_read(summary: RunSummary) -> list[str]:
    """Lines that follow the table."""
    lines = [
        f"run folder   {summary.run_dir}",
        "             metrics.jsonl, config.yaml, checkpoints/, and trace.json for https://ui.perfetto.dev",
        "in a browser `make ui`: Prefect http://127.0.0.1:4200 (iterations), MLflow http://127.0.0.1:5000 (curves, runs)",
    ]
    if summary.stopped_early:
        lines.insert(0, f"stopped early, as asked; go on with `libra train CONFIG --resume {summary.run_dir}`")
    return lines + ([f"MLflow run   {summary.mlflow_url}"] if summary.mlflow_url else [])
