"""The corpus: one passage per country, capital and city. A capital's passage names its country and nothing more, so that
a question about the country behind a capital takes two searches.

Passages are written like the head of an encyclopedia's infobox, each value right after the word that questions ask for: the
shortest pattern by which a policy of a million parameters can learn to read.
"""

from dataclasses import dataclass

from libra_core.workloads.search_r1.facts import Country, FactWorld


@dataclass(frozen=True, slots=True, kw_only=True)
class Passage:
    """One document of the corpus."""

    title: str
    text: str


def country_passage(country: Country) -> Passage:
    text = (
        f"{country.name}: continent {country.continent}, capital {country.capital}, "
        f"currency {country.currency}, population {country.population}."
    )
    return Passage(title=country.name, text=text)


def capital_passage(country: Country) -> Passage:
    return Passage(title=country.capital, text=f"{country.capital}: capital city, country {country.name}.")


def city_passage(city: str, country: Country) -> Passage:
    return Passage(title=city, text=f"{city}: city, country {country.name}.")


def corpus(world: FactWorld) -> tuple[Passage, ...]:
    """Every passage of a world, in the order of its countries."""
    passages: list[Passage] = []
    for country in world.countries:
        passages += [country_passage(country), capital_passage(country)]
        passages += [city_passage(city, country) for city in country.cities]
    return tuple(passages)
