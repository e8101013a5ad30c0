"""Prompts from a finite set of rows."""

import itertools
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import Generic, TypeVar

from libra_core.types.trajectory import Prompt
from libra_core.workloads.chat import Chat
from libra_core.workloads.problem_order import row_at

Row = TypeVar("Row")


class EpochSource(ABC, Generic[Row]):
    """Implements `ports.environment.PromptSource`: every row once per epoch, in an order of the seed's."""

    def __init__(self, chat: Chat, training: Sequence[Row], heldout: Sequence[Row], *, seed: int) -> None:
        self._chat = chat
        self._training = tuple(training)
        self._heldout = tuple(heldout)
        self._seed = seed

    @abstractmethod
    def prompt(self, row: Row, prefix: str = "") -> Prompt:
        """`prefix` goes before its id and kind."""

    def training(self, start: int) -> Iterator[Prompt]:
        """Endless; the first prompt has index `start`."""
        for index in itertools.count(start):
            yield self.prompt(self._training[row_at(len(self._training), self._seed, index)])

    def heldout(self, count: int) -> Sequence[Prompt]:
        return tuple(self.prompt(row, "heldout/") for row in self._heldout[:count])
