"""Prompts that leave no room to answer are counted when a run starts, and never asked."""

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from libra_core.borders import prompt_of, require_room
from libra_core.errors import ConfigError, PromptError
from libra_core.ports.environment import PromptSource
from libra_core.types.trajectory import Prompt

_TRIES: Final = 16
"""Prompts of an endless stream that are looked at when a run starts, and places that are tried for one that does not fit."""
_FAR: Final = 1 << 40
"""Beyond any index that a run asks for itself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptRoom:
    """What a model and a run allow."""

    max_tokens: int
    """Of the context, which must hold more than the prompt."""
    vocabulary: int | None = None
    """Token ids are below it; None where it is not known."""

    def fits(self, prompt: Prompt) -> bool:
        try:
            require_room(prompt, "the run", self.max_tokens)
        except PromptError:
            return False
        return True

    def checked(self, prompt: Prompt) -> Prompt:
        """Raises `BorderError` for token ids that the model does not know."""
        return prompt_of(prompt, self.vocabulary)

    def skipped(self, what: str, count: int, of: int) -> tuple[str, ...]:
        """The sentence on so many that do not fit, where there are any; raises `ConfigError` when none is left."""
        bound = f"rollout.max_context_tokens = {self.max_tokens}"
        if of and count == of:
            raise ConfigError(
                f"none of {of} {what} prompts leaves room to answer within {bound}; raise it, or shorten the prompts"
            )
        return (f"{count} of {of} {what} prompts leave no room to answer within {bound} and are skipped",) if count else ()


class CountedPrompts(PromptSource, Protocol):
    """A source whose prompts all fit."""

    def census(self) -> tuple[str, ...]:
        """What there is to say of its prompts, in sentences.

        Raises:
            ConfigError: no prompt fits.
            BorderError: a prompt has token ids that the model does not know.
        """
        ...


class FittingStream:
    """Implements `CountedPrompts` around a source of endlessly many prompts: in place of one that does not fit comes another one
    of the same stream, the same for each index whenever it is asked for."""

    def __init__(self, source: PromptSource, room: PromptRoom) -> None:
        self._source = source
        self._room = room

    def census(self) -> tuple[str, ...]:
        """Of the first few."""
        first = [self._room.checked(prompt) for prompt in itertools.islice(self._source.training(0), _TRIES)]
        return self._room.skipped("training", sum(not self._room.fits(prompt) for prompt in first), len(first))

    def training(self, start: int) -> Iterator[Prompt]:
        stream = self._source.training(start)
        for index, prompt in zip(itertools.count(start), stream, strict=False):
            yield self._room.checked(prompt if self._room.fits(prompt) else self._another(index))

    def heldout(self, count: int) -> Sequence[Prompt]:
        return tuple(self._room.checked(prompt) for prompt in self._source.heldout(count) if self._room.fits(prompt))

    def _another(self, index: int) -> Prompt:
        for prompt in itertools.islice(self._source.training((index + 1) * _FAR), _TRIES):
            if self._room.fits(prompt):
                return prompt
        raise PromptError(
            f"{_TRIES + 1} prompts in a row leave no room to answer within rollout.max_context_tokens = {self._room.max_tokens}; "
            "raise it, or choose tasks with shorter prompts"
        )
