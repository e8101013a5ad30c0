"""Prompts of Search-R1: training prompts ask about training countries, held-out ones are only for reports."""

import itertools
import random
from collections.abc import Iterator, Sequence

from libra_core.types.ids import PromptId
from libra_core.types.trajectory import Prompt
from libra_core.workloads.search_r1.drift import Mix, QuestionDrift
from libra_core.workloads.search_r1.facts import SPLIT_SEED, WorldSplit
from libra_core.workloads.search_r1.questions import Question, draw_question
from libra_core.workloads.search_r1.tags import prompt_text
from libra_core.workloads.text_codec import TextCodec


class SearchPromptSource:
    """Implements `ports.environment.PromptSource`. Prompt `i` depends on the seed and on `i` alone, so resuming costs nothing."""

    def __init__(
        self, codec: TextCodec, split: WorldSplit, *, two_hop_share: float, seed: int, drift: QuestionDrift | None = None
    ) -> None:
        """With a drift `two_hop_share` is that of the held-out questions only."""
        self._codec = codec
        self._split = split
        self._drift = drift
        self._two_hop_share = two_hop_share
        self._seed = seed

    def training(self, start: int) -> Iterator[Prompt]:
        """Endless; the first prompt has index `start`."""
        for index in itertools.count(start):
            mix = self._drift.at(index) if self._drift is not None else Mix(two_hop_share=self._two_hop_share, search_s=0.0)
            chance = random.Random(f"training/{self._seed}/{index}")
            yield self.prompt(draw_question(self._split.training, mix.two_hop_share, chance), search_s=mix.search_s)

    def heldout(self, count: int) -> Sequence[Prompt]:
        """The same questions for every run seed; none when no country is held out."""
        if not self._split.heldout.countries:
            return ()
        return tuple(self._heldout(index) for index in range(count))

    def prompt(self, question: Question, prefix: str = "", search_s: float = 0.0) -> Prompt:
        """A question as the policy sees it; `prefix` marks its stratum. How long its searches take travels as its instance."""
        text = prompt_text(question.text)
        return Prompt(
            prompt_id=PromptId(prefix + question.key),
            token_ids=self._codec.encode(text),
            text=question.text,
            answers=(question.answer,),
            kind=prefix + question.kind,
            instance=f"{search_s:.3f}" if search_s else "",
        )

    def _heldout(self, index: int) -> Prompt:
        chance = random.Random(f"heldout/{SPLIT_SEED}/{index}")
        return self.prompt(draw_question(self._split.heldout, self._two_hop_share, chance), prefix="heldout/")
