"""Prompts of Search-R1: training prompts ask about training countries, held-out ones are only for reports."""

import itertools
import random
from collections.abc import Iterator, Sequence

from libra_core.types.ids import PromptId
from libra_core.types.trajectory import Prompt
from libra_core.workloads.search_r1.facts import SPLIT_SEED, World, WorldSplit
from libra_core.workloads.search_r1.questions import Question, draw_question
from libra_core.workloads.search_r1.tags import prompt_text
from libra_core.workloads.text_codec import TextCodec


class SearchPromptSource:
    """Implements `ports.environment.PromptSource`. Prompt `i` depends on the seed and on `i` alone, so resuming costs nothing."""

    def __init__(self, codec: TextCodec, split: WorldSplit, *, two_hop_share: float, seed: int) -> None:
        self._codec = codec
        self._split = split
        self._two_hop_share = two_hop_share
        self._seed = seed

    def training(self, start: int) -> Iterator[Prompt]:
        """Endless; the first prompt has index `start`."""
        for index in itertools.count(start):
            yield self.prompt(self._draw(self._split.training, f"training/{self._seed}/{index}"))

    def heldout(self, count: int) -> Sequence[Prompt]:
        """The same questions for every run seed; none when no country is held out."""
        if not self._split.heldout.countries:
            return ()
        return tuple(self._heldout(index) for index in range(count))

    def prompt(self, question: Question, prefix: str = "") -> Prompt:
        """A question as the policy sees it; `prefix` marks its stratum."""
        text = prompt_text(question.text)
        return Prompt(
            prompt_id=PromptId(prefix + question.key),
            token_ids=self._codec.encode(text),
            text=question.text,
            answers=(question.answer,),
            kind=prefix + question.kind,
        )

    def _heldout(self, index: int) -> Prompt:
        return self.prompt(self._draw(self._split.heldout, f"heldout/{SPLIT_SEED}/{index}"), prefix="heldout/")

    def _draw(self, world: World, seed: str) -> Question:
        return draw_question(world, self._two_hop_share, random.Random(seed))
