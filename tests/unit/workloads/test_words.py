"""Words, answers and passages of any script are found and compared."""

import json
import unicodedata
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from libra_core.errors import ConfigError
from libra_core.workloads.search_r1.corpus_index import open_corpus
from libra_core.workloads.search_r1.passages import Passage
from libra_core.workloads.search_r1.retrieval import PassageIndex, document_terms, query_terms
from libra_core.workloads.search_r1.scoring import exact_match, token_f1
from libra_core.workloads.search_r1.words import words

PAGES = (
    Passage(title="Odz", text="Odz is a village."),
    Passage(title="Łódź", text="Łódź is a city in Poland."),
    Passage(title="北京", text="北京市是中华人民共和国的首都。"),
    Passage(title="東京", text="東京タワーは港区にある。"),
    Passage(title="Москва", text="Москва — столица России; Королёв рядом."),
    Passage(title="Αθήνα", text="Η Αθήνα είναι η πρωτεύουσα της Ελλάδας."),
    Passage(title="القاهرة", text="القاهِرة عاصمة مصر"),
    Passage(title="दिल्ली", text="दिल्ली भारत की राजधानी है"),
    Passage(title="กรุงเทพ", text="กรุงเทพมหานครเป็นเมืองหลวงของประเทศไทย"),
    Passage(title="서울", text="서울특별시는 대한민국의 수도이다"),
    Passage(title="Bogotá", text="Bogotá está en Colombia."),
)


@pytest.mark.parametrize(
    ("query", "title"),
    [
        ("Łódź", "Łódź"),
        ("lodz", "Łódź"),
        ("Odz", "Odz"),
        ("中华人民共和国首都", "北京"),
        ("华", "北京"),
        ("港区", "東京"),
        ("タワー", "東京"),
        ("ﾀﾜｰ", "東京"),
        ("МОСКВА", "Москва"),
        ("королев", "Москва"),
        ("ΑΘΗΝΑ", "Αθήνα"),
        ("القاهرة", "القاهرة"),
        ("राजधानी", "दिल्ली"),
        ("ประเทศไทย", "กรุงเทพ"),
        ("대한민국", "서울"),
        ("bogota", "Bogotá"),
    ],
)
def test_a_query_in_any_script_finds_its_page_first(query: str, title: str) -> None:
    assert PassageIndex(PAGES).search(query, 1)[0].title == title


def test_pairs_of_characters_stand_for_words_where_there_are_no_spaces() -> None:
    assert words("北京市 Łódź 2024年") == ["北京", "京市", "lodz", "2024", "年"]
    assert words("हिन्दी किताब") == ["हिन्दी", "किताब"], "vowel signs belong to their words"
    assert words("it's snake_case") == ["it", "s", "snake", "case"]


@given(st.text(max_size=30))
def test_words_do_not_depend_on_composition_or_width(text: str) -> None:
    assert words(unicodedata.normalize("NFD", text)) == words(unicodedata.normalize("NFC", text))
    assert all(word and not word.isspace() for word in words(text))


@given(st.text(st.characters(categories=["Lu", "Ll", "Lo", "Nd"]), min_size=1, max_size=12))
def test_a_page_is_found_by_its_own_title(title: str) -> None:
    assert set(query_terms(title)) <= set(document_terms(Passage(title=title, text="")))


@given(st.text(st.characters(codec="ascii"), max_size=40))
def test_english_words_are_as_they_were(text: str) -> None:
    import re

    assert words(text) == re.findall(r"[a-z0-9]+", text.lower())


def test_a_corpus_without_a_word_is_refused(tmp_path: Path) -> None:
    corpus = tmp_path / "corpus.jsonl"
    corpus.write_text("\n".join(json.dumps({"title": "", "text": text}) for text in ("!!!", "…", "")))
    with pytest.raises(ConfigError, match=r"none of the 3 passages of .* holds a word, so that no query can find any"):
        open_corpus(corpus, tmp_path / "cache")
    corpus.write_text("\n".join(json.dumps({"title": "", "text": text}) for text in ("!!!", "北京")))
    assert open_corpus(corpus, tmp_path / "cache").best("北京", 2)[0].text == "北京"


@pytest.mark.parametrize(
    ("written", "accepted"),
    [
        ("A", "A"),
        ("a.", "A"),
        ("(The)", "the"),
        ("ＡＢＣ", "abc"),
        ("４２", "42"),
        ("٤٢", "42"),
        ("STRASSE", "Straße"),
        ("ΣΊΣΥΦΟΣ", "Σίσυφος"),
        ("e\u0301cole", "école"),
        ("北京。", "北京"),
        ("zero\u200bwidth", "zerowidth"),
        ("МОСКВА", "Москва"),
        ("İstanbul", "istanbul"),
        ("\u22125", "-5"),
    ],
)
def test_answers_are_equal_in_any_script(written: str, accepted: str) -> None:
    assert exact_match(written, (accepted,))
    assert token_f1(written, accepted) == 1.0


def test_articles_alone_are_no_wildcard() -> None:
    assert not exact_match("a", ("the",))
    assert not exact_match("B", ("A",))
    assert not exact_match("", ("A",))


@pytest.mark.parametrize(("written", "accepted"), [("北京市", "北京"), ("東京タワー", "タワー"), ("город Москва", "Москва")])
def test_a_part_of_an_answer_earns_a_part(written: str, accepted: str) -> None:
    assert 0.0 < token_f1(written, accepted) < 1.0
    assert token_f1(written, accepted) == token_f1(accepted, written)


@given(st.text(max_size=20), st.text(max_size=20))
def test_f1_is_a_symmetric_share(first: str, second: str) -> None:
    assert 0.0 <= token_f1(first, second) <= 1.0
    assert token_f1(first, second) == pytest.approx(token_f1(second, first))
    assert exact_match(first, (second,)) is exact_match(second, (first,))


@pytest.mark.parametrize(
    ("query", "written"),
    [
        ("diyarbakir", "Diyarbakır"),
        ("IĞDIR", "Iğdır"),
        ("aero", "Ærø"),
        ("thorsmork", "Þórsmörk"),
        ("gudrun", "Guðrún"),
        ("oeuvre", "œuvre"),
        ("O'zbek", "O\u02bbzbek"),
        ("1403", "۱۴۰۳"),
        ("123", "١٢٣"),
        ("12", "१२"),
    ],
)
def test_letters_and_digits_are_found_as_a_keyboard_has_them(query: str, written: str) -> None:
    assert words(query) == words(written)
