"""Conversations to imitate, right ones and deliberately bad ones."""

import random
from collections.abc import Sequence
from dataclasses import dataclass

from libra_core.engines.warm_start.invention import CountryInventor
from libra_core.workloads.search_r1 import tags
from libra_core.workloads.search_r1.facts import Country, FactWorld
from libra_core.workloads.search_r1.passages import Passage, corpus
from libra_core.workloads.search_r1.questions import Question, draw_question
from libra_core.workloads.text_codec import TextCodec


@dataclass(frozen=True, slots=True, kw_only=True)
class Demonstration:
    """One conversation; both sequences have length L."""

    token_ids: tuple[int, ...]
    loss_mask: tuple[int, ...]
    """1 where the policy speaks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DemonstrationMix:
    """How good the demonstrations are."""

    good_share: float
    """Share of correct ones."""
    guess_share: float
    """Of the others, the share that answer at once; the rest search for the wrong thing."""


CLEAN = DemonstrationMix(good_share=1.0, guess_share=0.0)


class Demonstrator:
    """Draws demonstrations about invented countries.

    `names` lends names to the inventions, which join them at random and so give no fact away. Real passages, which bad
    demonstrations stumble on, come from `shown` alone.
    """

    def __init__(
        self, codec: TextCodec, *, names: FactWorld, shown: FactWorld, coined_share: float, two_hop_share: float
    ) -> None:
        self._codec = codec
        self._shown = shown
        self._inventor = CountryInventor(names, codec.pieces(), coined_share)
        self._two_hop_share = two_hop_share
        self._real = corpus(shown)

    def draw(self, mix: DemonstrationMix, rng: random.Random) -> Demonstration:
        country = self._inventor.invent(rng)
        question = draw_question(FactWorld(countries=(country,)), self._two_hop_share, rng)
        if rng.random() < mix.good_share:
            passages = {passage.title: passage for passage in corpus(FactWorld(countries=(country,)))}
            return self._written(question, [passages[title] for title in question.searches], question.answer)
        guess = self._guess(question, rng)
        if rng.random() < mix.guess_share:
            return self._written(question, (), guess)
        return self._written(question, (rng.choice(self._real),), guess)

    def _guess(self, question: Question, rng: random.Random) -> str:
        """An answer of the right sort that the country of the question has only by chance."""
        country = rng.choice(self._shown.countries)
        return _value(country, question.relation)

    def _written(self, question: Question, passages: Sequence[Passage], answer: str) -> Demonstration:
        parts = [(tags.prompt_text(question.text), 0)]
        for passage in passages:
            parts += [(tags.search_text(passage.title), 1), (tags.information_text(passage.text), 0)]
        parts.append((tags.answer_text(answer), 1))
        token_ids: list[int] = []
        loss_mask: list[int] = []
        for text, spoken in parts:
            encoded = self._codec.encode(text)
            token_ids += encoded
            loss_mask += [spoken] * len(encoded)
        return Demonstration(token_ids=tuple(token_ids), loss_mask=tuple(loss_mask))


def _value(country: Country, relation: str) -> str:
    values = {
        "capital": country.capital,
        "currency": country.currency,
        "continent": country.continent,
        "population": country.population,
        "country": country.name,
    }
    return values[relation]
