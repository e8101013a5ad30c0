"""Conversations with tools to imitate: what the scripted agents say, and what the tools answer them."""

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from libra_core.engines.warm_start.demonstrations import Demonstration
from libra_core.workloads.chat import Chat, ChatMessage
from libra_core.workloads.check.agents import boxed, repair_calls, tool_call
from libra_core.workloads.dapo_math.environment import PYTHON_HELP
from libra_core.workloads.dapo_math.generated import generated_problem
from libra_core.workloads.dapo_math.programs import program_of
from libra_core.workloads.dapo_math.source import with_help
from libra_core.workloads.python_tool import PYTHON_TOOL
from libra_core.workloads.r2e_gym.solution import view_window
from libra_core.workloads.r2e_gym.source import issue_message
from libra_core.workloads.r2e_gym.tasks import RepairTask
from libra_core.workloads.r2e_gym.workspace import TaskFiles
from libra_core.workloads.sandbox.types import CommandOutcome, SandboxResult
from libra_core.workloads.search_r1 import tags
from libra_core.workloads.text_codec import TextCodec
from libra_core.workloads.tool_text import tool_tokens

_STREAM = "lesson"
"""Problems apart from those of training and of reports."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Lesson:
    """One conversation."""

    messages: tuple[ChatMessage, ...]
    turns: tuple[tuple[str, str], ...]
    """What the policy says, without its end, and what the tool answers; nothing after the last turn."""

    def texts(self) -> list[str]:
        return [*(message.content for message in self.messages), *(text for turn in self.turns for text in turn)]


class Lessons(Protocol):
    def draw(self, rng: random.Random) -> Lesson: ...


class MathLessons:
    """A generated problem, the program that solves it, and its output in a box: can be learned, for numbers never seen."""

    def __init__(self, tasks: Sequence[str]) -> None:
        self._tasks = tuple(tasks)

    def draw(self, rng: random.Random) -> Lesson:
        problem = generated_problem(self._tasks, _STREAM, rng.randrange(2**31))
        program = program_of(problem.source, problem.messages[-1].content)
        assert program is not None, f"{problem.source} has a wording without a program"
        turns = ((tool_call(PYTHON_TOOL, code=program), _said(f"{problem.answer}\n")), (boxed(problem.answer), ""))
        return Lesson(messages=with_help(problem.messages, PYTHON_HELP), turns=turns)


class RepairLessons:
    """The known repair of a training task: can be recited, not generalised, by a policy of this size."""

    def __init__(self, tasks: Sequence[RepairTask], files: TaskFiles) -> None:
        self._lessons = [_repair(task, files.faulty(task)) for task in tasks]

    def draw(self, rng: random.Random) -> Lesson:
        return rng.choice(self._lessons)


def encoded(lesson: Lesson, codec: TextCodec, max_tool_tokens: int) -> Demonstration:
    """As the prompt source, the policy and the environment would write it."""
    chat = Chat(codec)
    token_ids = list(chat.prompt(lesson.messages))
    loss_mask = [0] * len(token_ids)
    for said, answered in lesson.turns:
        spoken = codec.encode(f"{said}{tags.MESSAGE_END}")
        read = chat.tool_turn(tool_tokens(answered, codec, max_tool_tokens)) if answered else ()
        token_ids += [*spoken, *read]
        loss_mask += [1] * len(spoken) + [0] * len(read)
    return Demonstration(token_ids=tuple(token_ids), loss_mask=tuple(loss_mask))


def _repair(task: RepairTask, faulty: str) -> Lesson:
    view, edit, submit = repair_calls(task, faulty)
    turns = ((view, _said(_viewed(task, faulty))), (edit, _said(f"{task.path} is changed\n")), (submit, ""))
    return Lesson(messages=(issue_message(task),), turns=turns)


def _viewed(task: RepairTask, faulty: str) -> str:
    """What the tool `view` prints."""
    lines = faulty.splitlines()
    start, end = view_window(task)
    shown = "".join(f"{number:6d}\t{lines[number - 1]}\n" for number in range(start, min(end, len(lines)) + 1))
    return f"{shown}({len(lines)} lines in all)\n" if end < len(lines) else shown


def _said(output: str) -> str:
    """Of a command that went well."""
    return SandboxResult(outcome=CommandOutcome.EXITED, exit_code=0, output=output, duration_s=0.0).text
