"""Countries that do not exist, so that a policy shown them can only learn to search and to read, not to remember."""

import random
from collections.abc import Sequence
from typing import Final

from libra_core.workloads.search_r1.facts import Country, FactWorld, population_text

_WORDS_PER_NAME: Final = (1, 1, 1, 2)
_PIECES_PER_WORD: Final = (2, 2, 3)
_LONGEST_PIECE: Final = 3


class CountryInventor:
    """Mixes the names of a world at random and coins words from `pieces`.

    With the vocabulary's own pieces every token is sometimes part of a name, so names never seen before can be copied too.
    """

    def __init__(self, world: FactWorld, pieces: Sequence[str], coined_share: float) -> None:
        self._pieces = sorted(piece for piece in pieces if piece.isalpha() and len(piece) <= _LONGEST_PIECE)
        self._coined_share = coined_share
        self._names = [country.name for country in world.countries]
        self._capitals = [country.capital for country in world.countries]
        self._cities = [city for country in world.countries for city in country.cities]
        self._currencies = sorted({country.currency for country in world.countries})
        self._continents = sorted({country.continent for country in world.countries})

    def invent(self, rng: random.Random) -> Country:
        return Country(
            name=self._pick(self._names, rng),
            continent=rng.choice(self._continents),
            capital=self._pick(self._capitals, rng),
            currency=self._pick(self._currencies, rng),
            population=population_text(int(10 ** rng.uniform(3, 9))),
            cities=(self._pick(self._cities, rng),),
        )

    def _pick(self, known: Sequence[str], rng: random.Random) -> str:
        if rng.random() >= self._coined_share:
            return rng.choice(known)
        return " ".join(self._coin(rng) for _ in range(rng.choice(_WORDS_PER_NAME)))

    def _coin(self, rng: random.Random) -> str:
        return "".join(rng.choice(self._pieces) for _ in range(rng.choice(_PIECES_PER_WORD))).capitalize()
