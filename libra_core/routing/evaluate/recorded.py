"""Recorded agent trajectories as numbers: one JSON object a line, plain or gzipped.

A line names its prompt (`task`), the sample, and per turn the generated tokens, the tool, the outcome that the tool runner
stated, the tokens returned and, where recorded, the seconds the tool took. The last turn has no tool return that a router could
act on, whatever the recording says of it.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from libra_core.borders import count_of, finite_of, text_of
from libra_core.errors import ConfigError
from libra_core.files import json_objects
from libra_core.types.trajectory import ToolStatus

_STATUSES = {
    "ok": ToolStatus.OK,
    "error": ToolStatus.ERROR,
    "timeout": ToolStatus.TIMEOUT,
    "format_error": ToolStatus.MALFORMED,
    "malformed": ToolStatus.MALFORMED,
    "final": ToolStatus.OK,
}
"""`final` marks a last turn, whose status is never read."""
UNRECORDED_TOOL_S = 1.0
"""Seconds of a tool call whose time was not recorded; it only sets how far a trajectory's neighbours get meanwhile."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedTurn:
    """Tokens generated, then what the tool answered; the answer of the last turn is never seen by anybody."""

    generated_tokens: int
    tool: str
    status: ToolStatus
    payload_tokens: int
    tool_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedTrajectory:
    """One sample of one prompt, with at least one turn and one generated token."""

    name: str
    """Unique in its set."""
    prompt_id: str
    prompt_text: str
    """What an embedding may read; the task's name where the text was not recorded."""
    prompt_tokens: int
    turns: tuple[RecordedTurn, ...]

    @property
    def generated_tokens(self) -> int:
        return sum(turn.generated_tokens for turn in self.turns)

    @property
    def final_tokens(self) -> int:
        """Context at the end: prompt, generated, and all returns but the last."""
        return self.prompt_tokens + self.generated_tokens + sum(turn.payload_tokens for turn in self.turns[:-1])


def read_recorded(path: Path, prompts: Mapping[str, str] | None = None) -> list[RecordedTrajectory]:
    """The trajectories of one file in recorded order; `prompts` gives the text of a task.

    Trajectories without a generated token are left out. Raises `ConfigError` that names the file and line of the first mistake.
    """
    texts = prompts or {}
    results: list[RecordedTrajectory] = []
    for number, (values, where) in enumerate(json_objects(path, "recorded trajectories"), start=1):
        trajectory = _trajectory(values, texts, where, number)
        results += [trajectory] if trajectory.generated_tokens else []
    if not results:
        raise ConfigError(f"{path} holds no trajectory with generated tokens; give a file of recorded trajectories")
    return results


def read_prompts(path: Path) -> dict[str, str]:
    """Text by task name: a JSON object a line with `task` or `instance_id`, and `text` or `problem_statement`."""
    texts: dict[str, str] = {}
    for values, where in json_objects(path, "prompts"):
        task, text = values.get("task", values.get("instance_id")), values.get("text", values.get("problem_statement"))
        if not isinstance(task, str) or not isinstance(text, str):
            raise ConfigError(f"{where} must hold task (or instance_id) and text (or problem_statement)")
        if texts.setdefault(task, text) != text:
            raise ConfigError(f"{where}: the task {task!r} has another text than above; leave one of them out")
    return texts


def _trajectory(values: dict[str, Any], texts: Mapping[str, str], where: str, number: int) -> RecordedTrajectory:
    wanted = ("task", "prompt_tok", "gen_tok", "tool", "status", "ret_tok")
    if missing := [name for name in wanted if name not in values]:
        raise ConfigError(f"{where} lacks {', '.join(missing)}; a recorded trajectory holds {', '.join(wanted)}")
    task = values["task"]
    task = str(task) if isinstance(task, int) else text_of(task, f"{where}: task")
    turns = _turns(values, where)
    return RecordedTrajectory(
        name=f"{number}:{task}",
        prompt_id=task,
        prompt_text=texts.get(task, task),
        prompt_tokens=count_of(values["prompt_tok"], f"{where}: prompt_tok"),
        turns=turns,
    )


def _turns(values: dict[str, Any], where: str) -> tuple[RecordedTurn, ...]:
    columns = [values["gen_tok"], values["tool"], values["status"], values["ret_tok"]]
    if not all(isinstance(column, list) for column in columns) or not columns[0] or len({len(column) for column in columns}) > 1:
        raise ConfigError(f"{where}: gen_tok, tool, status and ret_tok must be lists of one length, at least 1")
    seconds = values.get("tool_s") or [None] * len(columns[0])
    if not isinstance(seconds, list):
        raise ConfigError(f"{where}: tool_s must be a list, one entry a turn")
    if len(seconds) != len(columns[0]):
        raise ConfigError(f"{where}: tool_s has {len(seconds)} entries for {len(columns[0])} turns")
    return tuple(
        RecordedTurn(
            generated_tokens=count_of(generated, f"{where}: gen_tok"),
            tool=str(tool),
            status=_status(status, where),
            payload_tokens=count_of(returned, f"{where}: ret_tok"),
            # Recordings hold a few seconds below zero, for whatever reason; they are taken as they are.
            tool_s=UNRECORDED_TOOL_S if tool_s is None else finite_of(tool_s, f"{where}: tool_s"),
        )
        for generated, tool, status, returned, tool_s in zip(*columns, seconds, strict=True)
    )


def _status(value: Any, where: str) -> ToolStatus:
    if not isinstance(value, str) or value not in _STATUSES:
        raise ConfigError(f"{where}: status {value!r} is none of {', '.join(_STATUSES)}")
    return _STATUSES[value]
