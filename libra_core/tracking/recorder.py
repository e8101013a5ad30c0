"""Everything that is written down about one run, by the one process that trains."""

import logging
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, replace
from pathlib import Path
from statistics import median
from typing import Any

from libra_core.errors import CheckpointError, on_the_disk
from libra_core.ports.tracking import Tracker
from libra_core.tracking import jsonl
from libra_core.tracking.decisions import FILE_NAME as LEDGER_FILE
from libra_core.tracking.decisions import (
    abandon_open,
    append_decision,
    append_resolved,
    decision_row,
    drop_decisions_from,
    read_decisions,
)
from libra_core.tracking.ledger import decision_metrics, flat_row, ledger_summary, ledger_tags, resolved_metrics
from libra_core.tracking.lengths import LengthLog
from libra_core.tracking.metrics import iteration_metrics
from libra_core.tracking.planned import PLAN_NAME, RECORD_NAME, plan_outcome
from libra_core.tracking.run_folder import read_journal, update_journal
from libra_core.tracking.summary import SUMMARISED, RunPlace, RunSummary, summarise
from libra_core.tracking.trace import FILE_NAME as TRACE_FILE
from libra_core.tracking.trace import TraceWriter
from libra_core.types.decision import Decision, ResolvedDecision
from libra_core.types.lengths import LengthRecord
from libra_core.types.profile import RunProfile
from libra_core.types.reports import IterationReport, TrajectoryText
from libra_core.types.trace import TraceSpan

logger = logging.getLogger(__name__)

_USUAL_FROM, _USUAL_OF = 4, 9
"""Iterations that tell the usual throughput: from so many on, and of the last so many."""


class NullTracker:
    """For runs whose only record is the run folder."""

    def log_metrics(self, metrics: Mapping[str, float], step: int) -> None: ...

    def log_table(self, name: str, rows: Sequence[Mapping[str, object]]) -> None: ...

    def set_tags(self, tags: Mapping[str, str]) -> None: ...

    def log_file(self, path: Path) -> None: ...

    def finish(self, status: str) -> None: ...


class Recorder:
    """Owns metrics.jsonl, lengths.jsonl, trace.json, the journal and the tracker of one run.

    Used by the training's thread; decisions about the plan are written by another one, which touches the ledger alone.
    A disk that refuses is a `ResourceError`; `finish` never raises.
    """

    def __init__(self, run_dir: Path, tracker: Tracker, *, first_step: int = 0) -> None:
        self.run_dir = run_dir
        self._tracker = tracker
        with self._on_disk():
            self._trace = TraceWriter(run_dir)
            self._lengths = LengthLog(run_dir, first_step=first_step)
            jsonl.drop_metrics_from(run_dir, first_step)
            drop_decisions_from(run_dir, first_step)
            self._abandon_open()
        self._clock_s = time.monotonic()
        self._traced_until_s = time.time()
        self._reports: dict[int, IterationReport] = {}
        self._is_open = True
        self._replanning_s = 0.0
        self._throughput: deque[tuple[int, float]] = deque(maxlen=_USUAL_OF)

    def record(self, report: IterationReport) -> None:
        """Write one finished iteration; the journal comes last, so that it never promises what is not written."""
        journal = read_journal(self.run_dir)
        now_s = time.monotonic()
        wall_s = journal.wall_s + now_s - self._clock_s
        tokens = journal.generated_tokens + report.rollout.generated_tokens
        metrics = iteration_metrics(report) | {"progress/wall_s": wall_s, "progress/generated_tokens": float(tokens)}
        with self._on_disk():
            jsonl.append_metrics(self.run_dir, report.step, metrics)
        self._tracker.log_metrics(metrics, report.step)
        self._reports = {report.step: report}
        self._throughput.append((report.step, report.tokens_per_s))
        with self._on_disk():
            update_journal(
                self.run_dir,
                next_step=report.step + 1,
                policy_version=int(report.update.policy_version),
                wall_s=wall_s,
                generated_tokens=tokens,
            )
        self._clock_s = now_s

    def recorded(self, step: int) -> IterationReport | None:
        """The report of the newest iteration if it is this one: it is finished and must not run again."""
        return self._reports.get(step)

    def add_trace(self, spans_since: Callable[[float], Iterable[TraceSpan]]) -> None:
        """Append what happened since the call before; `spans_since` takes unix seconds."""
        since_s, self._traced_until_s = self._traced_until_s, time.time()
        spans = spans_since(since_s)
        with self._on_disk():
            self._trace.append(spans)

    def add_samples(self, step: int, rows: Sequence[TrajectoryText]) -> None:
        """One table per sampled step."""
        self._tracker.log_table(f"trajectories/step-{step:05d}", [asdict(row) for row in rows])

    def record_decision(self, decision: Decision, profile: RunProfile) -> dict[str, Any]:
        """Write a replanning round down; returns its row."""
        with self._on_disk():
            append_decision(self.run_dir, decision, profile)
        self._tracker.log_metrics(decision_metrics(decision, profile), decision.step)
        return decision_row(decision)

    def record_resolved(self, resolved: ResolvedDecision) -> dict[str, Any] | None:
        """What is now known of an earlier decision; its metrics are under the step of the decision. Returns its row."""
        with self._on_disk():
            append_resolved(self.run_dir, resolved)
        metrics = resolved_metrics(resolved)
        if metrics:
            self._tracker.log_metrics(metrics, resolved.step)
        return next((row for row in read_decisions(self.run_dir) if row["step"] == resolved.step), None)

    def usual_tokens_per_s(self, *, before: int) -> float | None:
        """Median throughput of the iterations before this one; None while they are too few to say."""
        values = [value for step, value in list(self._throughput) if step < before]
        return median(values) if len(values) >= _USUAL_FROM else None

    def add_replanning(self, seconds: float) -> None:
        """How long a replanning round kept the run."""
        self._replanning_s += seconds

    def add_lengths(self, records: Sequence[LengthRecord]) -> None:
        """What a step trained, for later planning and what-ifs."""
        with self._on_disk():
            self._lengths.append(records)

    def summary(self, heldout: Mapping[str, float], place: RunPlace, trajectories: Mapping[str, int] | None = None) -> RunSummary:
        """The run so far; its metrics also go to the tracker. `trajectories`: what became of them, by count.

        Raises:
            CheckpointError: the file of the metrics was damaged from outside.
        """
        rows = self._metrics()
        summary = replace(
            summarise(rows, place, heldout),
            trajectories=dict(trajectories or {}),
            plan=plan_outcome(self.run_dir, rows),
            replanning=ledger_summary(read_decisions(self.run_dir), self._replanning_s, float(rows[-1]["progress/wall_s"])),
        )
        self._tracker.log_metrics(summary.metrics(), step=int(rows[-1]["step"]))
        return summary

    def finish(self, status: str) -> None:
        """Complete the files, hand them to the tracker and end its run, whatever the disk says; a second call does nothing."""
        if not self._is_open:
            return
        self._is_open = False
        try:
            self._complete(status)
        except OSError as error:
            logger.warning("the files of %s are not complete: %s", self.run_dir, error)
        finally:
            self._tracker.finish(status)

    def _complete(self, status: str) -> None:
        self._abandon_open()
        ledger = read_decisions(self.run_dir)
        self._tracker.set_tags({"outcome": status.lower(), **ledger_tags(ledger)})
        if ledger:
            self._tracker.log_table("decisions", [flat_row(row) for row in ledger])
        self._trace.close()
        for name in ("config.yaml", RECORD_NAME, PLAN_NAME, jsonl.FILE_NAME, TRACE_FILE, LEDGER_FILE):
            if (self.run_dir / name).exists():
                self._tracker.log_file(self.run_dir / name)

    def _abandon_open(self) -> None:
        """Moves that the run's end, or its death before this resume, cut short."""
        for step in abandon_open(self.run_dir):
            self._tracker.log_metrics(resolved_metrics(ResolvedDecision(step=step, abandoned=True)), step)

    def _metrics(self) -> list[dict[str, Any]]:
        with self._on_disk():
            rows = jsonl.read_metrics(self.run_dir)
        whole = [row for row in rows if row.keys() >= SUMMARISED]
        if not whole:
            raise CheckpointError(f"{self.run_dir / jsonl.FILE_NAME} holds no iteration; was it changed from outside?")
        return whole

    def _on_disk(self) -> AbstractContextManager[None]:
        return on_the_disk(self.run_dir, "make room or make it writable, and resume the run")


_RECORDERS: dict[str, Recorder] = {}


def register_recorder(run_id: str, recorder: Recorder | None) -> None:
    """Let the tasks of this process find the recorder; None forgets it."""
    if recorder is None:
        _RECORDERS.pop(run_id, None)
    else:
        _RECORDERS[run_id] = recorder


def recorder_for(run_id: str) -> Recorder:
    assert run_id in _RECORDERS, f"run {run_id} is not recorded by this process"
    return _RECORDERS[run_id]
