"""Prompts of mathematics: generated, or of files."""

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Self

from libra_core.types.ids import PromptId
from libra_core.types.trajectory import Prompt
from libra_core.workloads.chat import Chat, ChatMessage
from libra_core.workloads.dapo_math.generated import generated_problem
from libra_core.workloads.dapo_math.problems import MathProblem
from libra_core.workloads.epochs import EpochSource

Heldout = Callable[[int], Sequence[MathProblem]]
"""The first so many."""


class MathPromptSource:
    """Implements `ports.environment.PromptSource`. Prompt `i` depends on the seed and on `i` alone, so resuming costs nothing."""

    def __init__(self, chat: Chat, problem_at: Callable[[int], MathProblem], heldout: Heldout, *, help_text: str = "") -> None:
        """`help_text` is appended to the last message of every problem, such as how to call a tool."""
        self._chat = chat
        self._problem_at = problem_at
        self._heldout = heldout
        self._help = help_text

    @classmethod
    def generated(cls, chat: Chat, tasks: Sequence[str], seed: int) -> Self:
        """A new problem for every index."""
        return cls(
            chat,
            lambda index: generated_problem(tasks, f"training/{seed}", index),
            lambda count: [generated_problem(tasks, "heldout", index) for index in range(count)],
        )

    def helped(self, text: str) -> "MathPromptSource":
        """The same problems, each with `text` below."""
        return MathPromptSource(self._chat, self._problem_at, self._heldout, help_text=text)

    def training(self, start: int) -> Iterator[Prompt]:
        """Endless; the first prompt has index `start`."""
        for index in itertools.count(start):
            yield self.prompt(self._problem_at(index))

    def heldout(self, count: int) -> Sequence[Prompt]:
        """The same problems for every run seed."""
        return tuple(self.prompt(problem, "heldout/") for problem in self._heldout(count))

    def prompt(self, problem: MathProblem, prefix: str = "") -> Prompt:
        return _prompt(self._chat, problem, with_help(problem.messages, self._help), prefix)


class FileProblemSource(EpochSource[MathProblem]):
    """Problems of files."""

    def messages(self, row: MathProblem) -> Sequence[ChatMessage]:
        return with_help(row.messages, self._help)

    def prompt(self, row: MathProblem, prefix: str = "") -> Prompt:
        return _prompt(self._chat, row, self.messages(row), prefix)


def with_help(messages: tuple[ChatMessage, ...], text: str) -> tuple[ChatMessage, ...]:
    """`text` below the last of them."""
    if not text:
        return messages
    return (*messages[:-1], replace(messages[-1], content=f"{messages[-1].content}\n{text}"))


def _prompt(chat: Chat, problem: MathProblem, messages: Sequence[ChatMessage], prefix: str) -> Prompt:
    return Prompt(
        prompt_id=PromptId(prefix + problem.key),
        token_ids=chat.prompt(messages),
        text=_text(messages),
        answers=(problem.answer,),
        kind=prefix + problem.source,
    )


def _text(messages: Sequence[ChatMessage]) -> str:
    return "\n".join(message.content for message in messages)
