"""Questions with their answers and the searches that find them."""

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from libra_core.workloads.search_r1.facts import Country, FactWorld


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """One question about one country."""

    key: str
    """Names the question within its world, such as `two_hop/currency/Nairobi`."""
    hops: int
    relation: str
    """What is asked for: `capital`, `currency`, `continent`, `population` or `country`."""
    text: str
    answer: str
    searches: tuple[str, ...]
    """Titles of the passages that lead to the answer, in order."""

    @property
    def kind(self) -> str:
        return "one_hop" if self.hops == 1 else "two_hop"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Relation:
    template: str
    answer: Callable[[Country], str]


_RELATIONS: Final[Mapping[str, _Relation]] = {
    "capital": _Relation(template="What is the capital of {}?", answer=lambda country: country.capital),
    "currency": _Relation(template="What is the currency of {}?", answer=lambda country: country.currency),
    "continent": _Relation(template="What is the continent of {}?", answer=lambda country: country.continent),
    "population": _Relation(template="What is the population of {}?", answer=lambda country: country.population),
}
_BEHIND_CAPITAL: Final = tuple(name for name in _RELATIONS if name != "capital")


def one_hop(country: Country) -> tuple[Question, ...]:
    """What one passage answers: the relations of the country, and the country of its capital and of its cities."""
    direct = [
        _question(1, name, country.name, relation.template.format(country.name), relation.answer(country), (country.name,))
        for name, relation in _RELATIONS.items()
    ]
    inverse = [_question(1, "country", country.capital, _country_of_capital(country.capital), country.name, (country.capital,))]
    inverse += [_question(1, "country", city, _country_of_city(city), country.name, (city,)) for city in country.cities]
    return (*direct, *inverse)


def two_hop(country: Country) -> tuple[Question, ...]:
    """What takes two passages: first the country behind a capital or a city, then its relation."""
    behind_capital = [
        _chained(name, country, country.capital, f"the country with the capital {country.capital}") for name in _BEHIND_CAPITAL
    ]
    behind_city = [
        _chained(name, country, city, f"the country with the city {city}") for city in country.cities for name in _RELATIONS
    ]
    return (*behind_capital, *behind_city)


def draw_question(world: FactWorld, two_hop_share: float, rng: random.Random) -> Question:
    """Country first, then the question, so that a country with many cities is not asked about more often."""
    country = rng.choice(world.countries)
    pool = two_hop(country) if rng.random() < two_hop_share else one_hop(country)
    return rng.choice(pool)


def _chained(relation_name: str, country: Country, place: str, description: str) -> Question:
    relation = _RELATIONS[relation_name]
    text = relation.template.format(description)
    return _question(2, relation_name, place, text, relation.answer(country), (place, country.name))


def _question(hops: int, relation: str, place: str, text: str, answer: str, searches: tuple[str, ...]) -> Question:
    kind = "one_hop" if hops == 1 else "two_hop"
    return Question(key=f"{kind}/{relation}/{place}", hops=hops, relation=relation, text=text, answer=answer, searches=searches)


def _country_of_capital(capital: str) -> str:
    return f"What is the country with the capital {capital}?"


def _country_of_city(city: str) -> str:
    return f"What is the country with the city {city}?"
