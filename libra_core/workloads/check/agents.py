"""Agents that need no model. Each says one turn at a time, given what its tools answered so far."""

import json
import random
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Final, Protocol

from libra_core.types.trajectory import Prompt
from libra_core.workloads.dapo_math.programs import program_of
from libra_core.workloads.r2e_gym.solution import replacement, view_window
from libra_core.workloads.r2e_gym.tasks import RepairTask
from libra_core.workloads.r2e_gym.workspace import TaskFiles
from libra_core.workloads.search_r1 import tags

_END: Final = tags.MESSAGE_END
_PRINTED: Final = re.compile(r"(-?\d+)\n\[exit code 0\]")


class Agent(Protocol):
    def say(self, prompt: Prompt, answers: Sequence[str]) -> str:
        """The next turn, with its end; `answers` are the texts of all tool returns so far."""
        ...


class ScriptedSearcher:
    """Searches for the place that the question names, then gives the accepted answer."""

    def say(self, prompt: Prompt, answers: Sequence[str]) -> str:
        if not answers:
            return tags.search_text(prompt.prompt_id.rpartition("/")[2])
        return tags.answer_text(prompt.answers[0])


class RandomSearcher:
    """Searches for words of the question and answers with one of them."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng

    def say(self, prompt: Prompt, answers: Sequence[str]) -> str:
        word = self._rng.choice(prompt.text.split())
        return tags.search_text(word) if self._rng.random() < 0.5 else tags.answer_text(word)


class ScriptedMathematician:
    """Boxes the right answer; where there is a tool, it runs a program first and boxes the whole number that this printed."""

    def __init__(self, *, python: bool) -> None:
        self._python = python

    def say(self, prompt: Prompt, answers: Sequence[str]) -> str:
        if self._python and not answers:
            program = program_of(prompt.kind.rpartition("/")[2], prompt.text) or f"print({prompt.answers[0]!r})"
            return f"{tool_call('python', code=program)}{_END}"
        printed = _PRINTED.search(answers[-1]) if answers else None
        return f"{boxed(printed.group(1) if printed else prompt.answers[0])}{_END}"


def boxed(answer: str) -> str:
    return f"\\boxed{{{answer}}}"


class RandomMathematician:
    def __init__(self, rng: random.Random) -> None:
        self._rng = rng

    def say(self, prompt: Prompt, answers: Sequence[str]) -> str:
        return f"{boxed(str(self._rng.randrange(-1000, 1000)))}{_END}"


class ScriptedRepairer:
    """Looks at the faulty line, puts the right one back, imports the module and submits."""

    def __init__(self, tasks: Mapping[str, RepairTask], files: TaskFiles) -> None:
        self._tasks = tasks
        self._files = files

    def say(self, prompt: Prompt, answers: Sequence[str]) -> str:
        task = self._tasks[prompt.instance]
        view, edit, submit = repair_calls(task, self._files.faulty(task))
        turns = (view, edit, tool_call("bash", command=f"python3 -c 'import {task.tests[0].module}'"), submit)
        return f"{turns[min(len(answers), len(turns) - 1)]}{_END}"


def repair_calls(task: RepairTask, faulty: str) -> tuple[str, str, str]:
    """Look, edit, submit; `faulty` is the file with the fault."""
    start, end = view_window(task)
    old, new = replacement(faulty, task)
    return (
        tool_call("view", path=task.path, start=start, end=end),
        tool_call("edit", path=task.path, old=old, new=new),
        tool_call("submit"),
    )


class RandomRepairer:
    """Uses the tools at random and submits at some point."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng

    def say(self, prompt: Prompt, answers: Sequence[str]) -> str:
        turns = (
            tool_call("bash", command=self._rng.choice(("ls", "ls -R | head", "cat nothing", "echo x > new.py"))),
            tool_call("view", path="."),
            tool_call("search", pattern=self._rng.choice(("def ", "return", "["))),
            tool_call("python", code="print(1)"),
            tool_call("edit", path="new.py", old="", new=f"x = {self._rng.random()}\n"),
            tool_call("submit"),
        )
        return f"{self._rng.choice(turns)}{_END}"


class Babbler:
    """Whatever must not break anything: noise, tags without sense, broken calls, very long turns, nothing."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng

    def say(self, prompt: Prompt, answers: Sequence[str]) -> str:
        return self._rng.choice(_BABBLE)(self._rng) + self._rng.choice((_END, tags.SEARCH_END, ""))


def _noise(rng: random.Random) -> str:
    return rng.randbytes(rng.randrange(1, 300)).decode("utf-8", errors="replace")


def _pieces(rng: random.Random) -> str:
    calls = ("<tool_call>", "</tool_call>", '{"name": "bash"', "}", "<function=bash>")
    pieces = (*calls, *tags.SPECIAL_TOKENS, "\\boxed{", "\n", "Answer:")
    return "".join(rng.choice(pieces) for _ in range(rng.randrange(1, 20)))


_BABBLE: Final[tuple[Callable[[random.Random], str], ...]] = (
    _noise,
    _pieces,
    lambda rng: "",
    lambda rng: "x" * 100_000,
    lambda rng: "\0" * 50,
    lambda rng: f"<search> {_noise(rng)}",
    lambda rng: "<search> a</search><search> b</search>",
    lambda rng: '<tool_call>{"name": "bash", "arguments": {"command": 7}}</tool_call>',
    lambda rng: '<tool_call>{"name": "nothing", "arguments": {}}</tool_call>',
    lambda rng: tool_call("bash", command=_noise(rng).replace("\0", "")),
    lambda rng: tool_call("python", code=_noise(rng)),
    lambda rng: tool_call("edit", path="../../etc/passwd", old="", new=_noise(rng)),
    lambda rng: "\\boxed{" * 50,
)


def tool_call(tool: str, **arguments: object) -> str:
    return f"<tool_call>{json.dumps({'name': tool, 'arguments': arguments})}</tool_call>"
