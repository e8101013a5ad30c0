"""Prompts from a finite set of rows."""

import itertools
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import Final, Generic, TypeVar

from libra_core.types.trajectory import Prompt
from libra_core.workloads.chat import Chat, ChatMessage
from libra_core.workloads.fitting import PromptRoom
from libra_core.workloads.problem_order import row_at

Row = TypeVar("Row")
_FRAME: Final = 64
"""Tokens around a message, at most."""


class EpochSource(ABC, Generic[Row]):
    """Implements `CountedPrompts`: every row that fits once per epoch, in an order of the seed's."""

    def __init__(
        self,
        chat: Chat,
        training: Sequence[Row],
        heldout: Sequence[Row],
        *,
        seed: int,
        room: PromptRoom | None = None,
        help_text: str = "",
    ) -> None:
        """Without `room` every row fits. `help_text`, such as how to call a tool, goes below the last message of every prompt."""
        self._chat = chat
        self._all_training = tuple(training)
        self._all_heldout = tuple(heldout)
        self._seed = seed
        self._room = room
        self._help = help_text

    @abstractmethod
    def messages(self, row: Row) -> Sequence[ChatMessage]:
        """As the policy sees them."""

    @abstractmethod
    def prompt(self, row: Row, prefix: str = "") -> Prompt:
        """`prefix` goes before its id and kind."""

    def census(self) -> tuple[str, ...]:
        """How many rows do not fit, and how many are both trained and held out."""
        if self._room is None:
            return ()
        for row in self._training[:1]:
            self._room.checked(self.prompt(row))
        all_rows = (("training", self._all_training, self._training), ("held-out", self._all_heldout, self._heldout))
        said = [self._room.skipped(what, len(rows) - len(kept), len(rows)) for what, rows, kept in all_rows]
        return (*itertools.chain(*said), *self._trained_too())

    def training(self, start: int) -> Iterator[Prompt]:
        """Endless; the first prompt has index `start`."""
        for index in itertools.count(start):
            yield self._checked(self._training[row_at(len(self._training), self._seed, index)])

    def heldout(self, count: int) -> Sequence[Prompt]:
        return tuple(self._checked(row, "heldout/") for row in self._heldout[:count])

    @cached_property
    def _training(self) -> tuple[Row, ...]:
        return tuple(row for row in self._all_training if self._fits(row))

    @cached_property
    def _heldout(self) -> tuple[Row, ...]:
        return tuple(row for row in self._all_heldout if self._fits(row))

    def _checked(self, row: Row, prefix: str = "") -> Prompt:
        prompt = self.prompt(row, prefix)
        return prompt if self._room is None else self._room.checked(prompt)

    def _fits(self, row: Row) -> bool:
        """A text has no more tokens than bytes, so that short ones need not be encoded."""
        if self._room is None:
            return True
        most = sum(len(message.content.encode()) + _FRAME for message in self.messages(row))
        return most + _FRAME < self._room.max_tokens or self._room.fits(self.prompt(row))

    def _trained_too(self) -> tuple[str, ...]:
        trained = {self._asked(row) for row in self._training}
        count = sum(self._asked(row) in trained for row in self._heldout)
        if not count:
            return ()
        return (
            f"{count} of {len(self._heldout)} held-out prompts are among those of workload.train_files: heldout/* will tell what "
            "the policy has learnt by heart; name other heldout_files",
        )

    def _asked(self, row: Row) -> tuple[str, ...]:
        return tuple(message.content for message in self.messages(row))
