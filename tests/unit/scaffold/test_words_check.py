"""A word of the private dialect in a name, and a class name that is used twice, do not get into the product."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.checks.words import ROOMS, ROOT, Words, check, findings, parts_of, words_of

WORDS = Words(banned={"keeper": '"manager"', "look": '"round"'}, allowed={"book_keeper": "a name of another library"})


def of(text: str, path: str = "libra_core/one.py") -> list[str]:
    return [finding.message for finding in check({path: text}, WORDS)]


def test_the_product_has_standard_words_and_each_class_name_once() -> None:
    assert findings(ROOT) == []


@pytest.mark.parametrize(
    "text",
    [
        "class FleetKeeper: ...",
        "def start_keeper(): ...",
        "async def keeper(): ...",
        "def start(keeper): ...",
        "def start(*, keeper=None): ...",
        "start = lambda keeper: keeper",
        "class Fleet:\n    keeper: int = 0",
        "self._keeper = None",
        "KEEPER_S = 1.0",
        "for keeper in fleet: ...",
        "if keeper := fleet: ...",
        "from os import path as keeper",
        "with fleet as keeper: ...",
        "try: ...\nexcept ValueError as keeper: ...",
        "match fleet:\n    case [keeper, *_]: ...",
        "metric = 'keeper/starts'",
        "metric = 'fleet/keeper_s'",
    ],
)
def test_a_name_of_any_kind_with_a_banned_word_is_refused_with_the_word_to_say_instead(text: str) -> None:
    (message,) = of(text)
    assert message.endswith('"keeper" is no word of the field: say "manager"')


@pytest.mark.parametrize(
    "text",
    [
        "keepers_of_books = 1",  # another word
        "lookup = outlook = 1",
        "fleet.keeper.start(keeper=keeper)",  # given elsewhere, and refused there
        '"""The keeper, the look and a keeper/look."""',
        "book_keeper = 1",
        "error = 'no keeper looks'",
    ],
)
def test_sentences_other_words_and_what_others_named_may_stay(text: str) -> None:
    assert of(text) == []


def test_a_module_and_its_folder_are_names_too() -> None:
    assert len(of("", "libra_core/fleet_keeper.py")) == 1
    assert len(of("", "libra_core/looks_and_look/fleet.py")) == 1


def test_a_class_name_used_twice_is_refused_where_the_second_stands() -> None:
    (finding,) = check(
        {"flows/a.py": "class Row: ...", "tasks/b.py": "x = 1\nclass Row: ...", "tasks/c.py": "class Rows: ..."}, WORDS
    )
    assert (finding.path, finding.line) == ("tasks/b.py", 2)
    assert "flows/a.py has a class of this name" in finding.message


@given(st.lists(st.text("abcdefghij", min_size=2, max_size=6), min_size=1, max_size=4))
def test_a_name_has_the_same_parts_in_each_way_of_writing_it(parts: list[str]) -> None:
    written = ("_".join(parts), "_" + "_".join(parts), "_".join(parts).upper(), "".join(part.capitalize() for part in parts))
    assert all(parts_of(name) == parts for name in written)


def test_every_banned_word_says_what_to_say_and_every_allowed_name_holds_one() -> None:
    words = words_of(ROOT)
    assert all(words.banned.values())
    assert all(set(parts_of(name)) & set(words.banned) for name in words.allowed)
    files = [path for room in ROOMS for path in Path(ROOT, room).rglob("*.py")]
    product = "".join(path.read_text(encoding="utf-8") for path in files)
    assert [name for name in words.allowed if name not in product] == []
