"""Prompts of mathematics: of files, or generated."""

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Self

from libra_core.types.ids import PromptId
from libra_core.types.trajectory import Prompt
from libra_core.workloads.chat import Chat, Message
from libra_core.workloads.dapo_math.generated import generated_problem
from libra_core.workloads.dapo_math.problems import MathProblem
from libra_core.workloads.problem_order import row_at

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
    def of_files(cls, chat: Chat, training: Sequence[MathProblem], heldout: Sequence[MathProblem], seed: int) -> Self:
        """Every problem once per epoch."""
        return cls(chat, lambda index: training[row_at(len(training), seed, index)], lambda count: heldout[:count])

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
        messages = with_help(problem.messages, self._help) if self._help else problem.messages
        return Prompt(
            prompt_id=PromptId(prefix + problem.key),
            token_ids=self._chat.prompt(messages),
            text=_text(messages),
            answers=(problem.answer,),
            kind=prefix + problem.source,
        )


def with_help(messages: tuple[Message, ...], text: str) -> tuple[Message, ...]:
    """`text` below the last of them."""
    return (*messages[:-1], replace(messages[-1], content=f"{messages[-1].content}\n{text}"))


def _text(messages: Sequence[Message]) -> str:
    return "\n".join(message.content for message in messages)
