"""Prompts from files of questions."""

import itertools
from collections.abc import Iterator, Sequence

from libra_core.types.ids import PromptId
from libra_core.types.trajectory import Prompt
from libra_core.workloads.chat import Chat, Message
from libra_core.workloads.problem_order import row_at
from libra_core.workloads.search_r1.questions_file import FileQuestion
from libra_core.workloads.search_r1.tag_environment import INSTRUCTION


class FileQuestionSource:
    """Implements `ports.environment.PromptSource`: every question once per epoch, in an order of the seed's."""

    def __init__(self, chat: Chat, training: Sequence[FileQuestion], heldout: Sequence[FileQuestion], *, seed: int) -> None:
        self._chat = chat
        self._training = tuple(training)
        self._heldout = tuple(heldout)
        self._seed = seed

    def training(self, start: int) -> Iterator[Prompt]:
        """Endless; the first prompt has index `start`."""
        for index in itertools.count(start):
            yield self.prompt(self._training[row_at(len(self._training), self._seed, index)])

    def heldout(self, count: int) -> Sequence[Prompt]:
        return tuple(self.prompt(question, "heldout/") for question in self._heldout[:count])

    def prompt(self, question: FileQuestion, prefix: str = "") -> Prompt:
        message = Message(role="user", content=INSTRUCTION.format(question.text))
        return Prompt(
            prompt_id=PromptId(prefix + question.key),
            token_ids=self._chat.prompt((message,)),
            text=question.text,
            answers=question.answers,
            kind=prefix + question.source,
        )
