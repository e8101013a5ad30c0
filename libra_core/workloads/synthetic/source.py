"""Prompts of random tokens."""

import itertools
import random
from collections.abc import Iterator, Sequence

from libra_core.types.ids import PromptId
from libra_core.types.trajectory import Prompt


class SyntheticPromptSource:
    """Implements `ports.environment.PromptSource`. Prompt `i` depends on the seed and on `i` alone, so resuming costs nothing."""

    def __init__(self, *, vocabulary_size: int, prompt_tokens: int, seed: int) -> None:
        self._vocabulary_size = vocabulary_size
        self._prompt_tokens = prompt_tokens
        self._seed = seed

    def training(self, start: int) -> Iterator[Prompt]:
        """Endless; the first prompt has index `start`."""
        for index in itertools.count(start):
            yield self._prompt(f"training/{self._seed}/{index}", "synthetic")

    def heldout(self, count: int) -> Sequence[Prompt]:
        """The same prompts for every run seed."""
        return tuple(self._prompt(f"heldout/{index}", "heldout/synthetic") for index in range(count))

    def _prompt(self, name: str, kind: str) -> Prompt:
        generator = random.Random(name)
        token_ids = tuple(generator.randrange(self._vocabulary_size) for _ in range(self._prompt_tokens))
        return Prompt(prompt_id=PromptId(name), token_ids=token_ids, text=name, answers=(), kind=kind)
