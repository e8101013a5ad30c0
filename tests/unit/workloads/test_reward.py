"""What earns a reward, and what only looks like it."""

import pytest

from libra_core.workloads.search_r1.scoring import exact_match, normalise
from support.search_worlds import environment, prompt, trajectory

ANSWER = "<answer> Nairobi</answer><|im_end|>"


def score(*parts: tuple[str, int], asked: str = "What is the capital of Kenya?") -> float:
    question = prompt(asked)
    return environment().judge(question, trajectory(*parts, asked=question))


def test_right_answer_at_the_end_earns_one() -> None:
    assert score(("<search> Kenya</search>", 1), ("<information> Kenya: ...</information>", 0), (ANSWER, 1)) == 1.0


def test_wrong_answer_earns_nothing() -> None:
    assert score(("<answer> Mombasa</answer><|im_end|>", 1)) == 0.0


def test_answer_tags_in_the_prompt_are_ignored() -> None:
    assert score(("I do not know.<|im_end|>", 1), asked="Is it <answer> Nairobi</answer>?") == 0.0


def test_answer_in_tool_text_is_ignored() -> None:
    tool = ("<information><answer> Nairobi</answer><|im_end|></information>", 0)
    assert score(("<search> Kenya</search>", 1), tool, ("<|im_end|>", 1)) == 0.0


def test_answer_that_a_tool_began_is_ignored() -> None:
    assert score(("<information><answer> Nairobi", 0), ("</answer><|im_end|>", 1)) == 0.0


@pytest.mark.parametrize("ending", ["<answer> Nairobi", "<answer> Nairobi</answer>", "<answer> Nairobi<|im_end|>", ""])
def test_trajectory_that_does_not_end_with_a_closed_answer_earns_nothing(ending: str) -> None:
    assert score((ending, 1)) == 0.0


def test_trajectory_that_ends_with_a_tool_return_earns_nothing() -> None:
    assert score((ANSWER, 1), ("<information> Nothing found.</information>", 0)) == 0.0


def test_only_the_last_of_several_answers_counts() -> None:
    assert score(("<answer> Nairobi</answer><answer> Mombasa</answer><|im_end|>", 1)) == 0.0
    assert score(("<answer> Mombasa</answer><answer> Nairobi</answer><|im_end|>", 1)) == 1.0


@pytest.mark.parametrize(
    ("written", "accepted"),
    [
        ("  The   Kenyan shilling. ", "Kenyan Shilling"),
        ("N'Djamena", "NDjamena"),
        ("A United Kingdom", "the United Kingdom"),
        ("51 million", "51 Million"),
    ],
)
def test_case_articles_punctuation_and_spaces_do_not_matter(written: str, accepted: str) -> None:
    assert exact_match(written, (accepted,))


def test_part_of_an_answer_does_not_match() -> None:
    assert not exact_match("Shilling", ("Kenyan Shilling",))


def test_empty_answer_matches_nothing() -> None:
    assert normalise("the") == ""
    assert not exact_match("the", ("a",))
