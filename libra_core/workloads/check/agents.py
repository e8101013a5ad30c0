"""Agents that need no model. Each says one turn at a time, given what its tools answered so far."""

import json
import random
from collections.abc import Callable, Mapping, Sequence
from typing import Final, Protocol

from libra_core.types.trajectory import Prompt
from libra_core.workloads.r2e_gym.tasks import RepairTask
from libra_core.workloads.search_r1 import tags

_END: Final = tags.MESSAGE_END


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
    """Boxes the right answer; first runs a program when there is a tool."""

    def __init__(self, *, python: bool) -> None:
        self._python = python

    def say(self, prompt: Prompt, answers: Sequence[str]) -> str:
        if self._python and not answers:
            return f"{_call('python', code='print(6 * 7)')}{_END}"
        return f"So it is \\boxed{{{prompt.answers[0]}}}.{_END}"


class RandomMathematician:
    def __init__(self, rng: random.Random) -> None:
        self._rng = rng

    def say(self, prompt: Prompt, answers: Sequence[str]) -> str:
        return f"\\boxed{{{self._rng.randrange(-1000, 1000)}}}{_END}"


class ScriptedRepairer:
    """Looks at the faulty line, puts the right one back, runs the example and submits."""

    def __init__(self, tasks: Mapping[str, RepairTask]) -> None:
        self._tasks = tasks

    def say(self, prompt: Prompt, answers: Sequence[str]) -> str:
        task = self._tasks[prompt.instance]
        replace = (
            "import sys\np, n, a, b = sys.argv[1:]\nlines = open(p, newline='').read().split('\\n')\n"
            "assert lines[int(n) - 1] == a\nlines[int(n) - 1] = b\nopen(p, 'w', newline='').write('\\n'.join(lines))\n"
        )
        words = " ".join(_quoted(word) for word in (task.path, str(task.line), task.after, task.before))
        module = task.tests[0].module
        turns = (
            _call("view", path=task.path, start=max(1, task.line - 3), end=task.line + 3),
            _call("bash", command=f"python3 -c {_quoted(replace)} {words}"),
            _call("python", code=f"import {module}"),
            _call("submit"),
        )
        return f"{turns[min(len(answers), len(turns) - 1)]}{_END}"


class RandomRepairer:
    """Uses the tools at random and submits at some point."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng

    def say(self, prompt: Prompt, answers: Sequence[str]) -> str:
        turns = (
            _call("bash", command=self._rng.choice(("ls", "ls -R | head", "cat nothing", "echo x > new.py"))),
            _call("view", path="."),
            _call("search", pattern=self._rng.choice(("def ", "return", "["))),
            _call("python", code="print(1)"),
            _call("edit", path="new.py", old="", new=f"x = {self._rng.random()}\n"),
            _call("submit"),
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
    lambda rng: _call("bash", command=_noise(rng).replace("\0", "")),
    lambda rng: _call("python", code=_noise(rng)),
    lambda rng: _call("edit", path="../../etc/passwd", old="", new=_noise(rng)),
    lambda rng: "\\boxed{" * 50,
)


def _call(tool: str, **arguments: object) -> str:
    return f"<tool_call>{json.dumps({'name': tool, 'arguments': arguments})}</tool_call>"


def _quoted(word: str) -> str:
    return "'" + word.replace("'", "'\"'\"'") + "'"
