"""What counts as an answer, and when two answers are the same."""

import asyncio
import sys
import time
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from libra_core.errors import DeadlineError
from libra_core.workloads.dapo_math.answers import NoAnswer, extract_answer, last_boxed, same_value
from libra_core.workloads.dapo_math.grading import GraderPool
from libra_core.workloads.dapo_math.overlong import overlong_penalty

HANGING = (sys.executable, "-c", "import sys, time\nprint('null', flush=True)\nsys.stdin.readline()\ntime.sleep(600)")
DYING = (sys.executable, "-c", "import sys\nprint('null', flush=True)\nsys.stdin.readline()")


def graded(pairs: Sequence[tuple[str, str]]) -> list[bool]:
    async def grade() -> list[bool]:
        pool = GraderPool(workers=1, deadline_s=60.0)
        try:
            return [await pool.equal(gold, answer) for gold, answer in pairs]
        finally:
            pool.close()

    return asyncio.run(grade())


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("so \\boxed{42}.", "42"),
        ("\\boxed{\\frac{1}{\\sqrt{2}}}", "\\frac{1}{\\sqrt{2}}"),
        ("first \\boxed{1}, no: \\boxed{2}", "2"),
        ("\\boxed{\\boxed{7}}", "7"),
        ("a set \\boxed{\\{1, 2\\}}", "\\{1, 2\\}"),
        ("thinking\nAnswer: 12", "12"),
        ("**Final answer:** 12.", "12."),
        ("the answer is\n#### 72", "72"),
        ("Answer: 3\nAnswer: 5", "5"),
        ("Answer: \\boxed{9}", "9"),
    ],
)
def test_the_last_answer_counts(text: str, answer: str) -> None:
    found = extract_answer(text).answer
    assert found is not None
    assert same_value(found, answer)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", NoAnswer.EMPTY),
        (" \n", NoAnswer.EMPTY),
        ("I do not know, maybe 12", NoAnswer.MISSING),
        ("\\boxed{}", NoAnswer.MISSING),
        ("\\boxed{1", NoAnswer.UNCLOSED),
        ("\\boxed{2} or \\boxed{1", NoAnswer.UNCLOSED),
        ("\\boxed{" + "1" * 2000 + "}", NoAnswer.TOO_LONG),
    ],
)
def test_no_answer_has_a_reason(text: str, reason: NoAnswer) -> None:
    assert extract_answer(text).answer is None
    assert extract_answer(text).reason is reason


@pytest.mark.parametrize(
    ("first", "second", "same"),
    [
        ("1/2", "0.5", True),
        ("0.5", "\\frac12", True),
        ("1/2", "\\dfrac{1}{2}", True),
        ("x=3", "3", True),
        ("$1,234$", "1234", True),
        ("\\$1,234", "1234", True),
        ("70 %", "70", True),
        ("70\\%", "70", True),
        ("70 %", "0.7", False),
        ("5\\text{ cm}", "5", True),
        ("6~\\text{hours}", "6", True),
        ("5 dollars", "5", True),
        ("3/4 cups", "0.75", True),
        ("5 million", "5", None),
        ("\\frac\\pi2", "\\frac{\\pi}{2}", True),
        ("\\frac ab", "\\frac{a}b", True),
        ("10_2", "10", False),
        ("10", "(10)_{2}", False),
        ("10_2", "2", False),
        ("1010_2", "1010_{3}", False),
        ("x_1", "x", None),
        ("-3", "−3", True),
        ("3", "4", False),
        ("", "", False),
        ("1,2", "12", None),
        ("1.0", "1", True),
    ],
)
def test_plain_values_are_compared_without_algebra(first: str, second: str, same: bool | None) -> None:
    assert same_value(first, second) is same


def test_algebra_decides_what_is_not_plain() -> None:
    pairs = [
        ("\\frac{\\sqrt{2}}{2}", "\\frac{1}{\\sqrt{2}}"),
        ("2\\sqrt{3}", "\\sqrt{12}"),
        ("(x+1)^2", "x^2+2x+1"),
        ("\\left( 3, \\frac{\\pi}{2} \\right)", "(3, \\pi/2)"),
        ("2\\sqrt{3}", "\\sqrt{13}"),
        ("(3, 4)", "(4, 3)"),
        ("x+1", "x}{\\frac"),
        ("\\frac{1}{0}", "5"),
        ("\\frac\\pi2", "\\pi/2"),
        ("1010_2", "1010_{2}"),
        ("10_{10}", "10"),
    ]
    assert graded(pairs) == [True, True, True, True, False, False, False, False, True, True, True]


def test_a_hanging_grader_is_no_verdict() -> None:
    async def grade() -> None:
        pool = GraderPool(workers=1, deadline_s=0.2, program=HANGING)
        with pytest.raises(DeadlineError, match="hangs"):
            await pool.equal("x+1", "y")
        with pytest.raises(DeadlineError, match="hangs"):
            await pool.equal("x+1", "z")
        pool.close()

    asyncio.run(grade())


def test_a_dead_grader_is_no_verdict() -> None:
    async def grade() -> None:
        pool = GraderPool(workers=1, deadline_s=5.0, program=DYING)
        with pytest.raises(DeadlineError, match="died"):
            await pool.equal("x+1", "y")
        pool.close()

    asyncio.run(grade())


@given(st.text(alphabet="\\boxed{}Answer:# 12\n$%=/", max_size=200))
def test_extraction_answers_whatever_is_written(text: str) -> None:
    extraction = extract_answer(text)
    assert (extraction.answer is None) == (extraction.reason is not None)


@given(st.text(max_size=40).filter(lambda text: "\\" not in text), st.text(max_size=40))
def test_a_boxed_answer_is_found_whole(prefix: str, inside: str) -> None:
    balanced = inside.replace("{", "").replace("}", "").replace("\\", "")
    assert last_boxed(f"{prefix}\\boxed{{{{{balanced}}}}} end") == f"{{{balanced}}}"


def test_extraction_of_long_text_is_linear() -> None:
    assert extract_answer("answer " * 200_000).answer is None
    assert extract_answer("\\boxed{" * 20_000).reason is NoAnswer.UNCLOSED


@pytest.mark.parametrize(("tokens", "penalty"), [(0, 0.0), (80, 0.0), (90, -0.5), (100, -1.0), (200, -1.0)])
def test_overlong_penalty_is_soft(tokens: int, penalty: float) -> None:
    assert overlong_penalty(tokens, max_tokens=100, cache_tokens=20) == pytest.approx(penalty)


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("so \\boxed{41} for now\nAnswer: 42", "42"),
        ("Answer: 41\nno, \\boxed{42}", "42"),
        ("Answer\uff1a42", "42"),
        ("Answer\u223642", "42"),
        ("Answer: 42\nAnswering such questions is fun", "42"),
        ("Answer: 42\nAnswer sheets are due", "42"),
        ("\\fbox{42}", "42"),
        ("\\boxed {42}", "42"),
        ("\\boxed 42.", "42"),
        ("$\\boxed{41}$ then $\\fbox{42}$", "42"),
        ("**Answer:** 42", "42"),
        ("**Answer: 42**", "42"),
        ("### Final Answer:\n\n42", "42"),
        ("Answer: $\\boxed{42}$", "42"),
        ("\\boxed{42}\nI put it within \\boxed{}.", "42"),
        ("\\boxed{42}\n#### Verification\nfine", "42"),
        ("\\boxed{42}\nAnswer is correct.", "42"),
        ("\\boxed{x\nAnswer: 42", "42"),
        ("\u7b54\u6848\uff1a42\u3002", "42"),
        ("Answer: 41\n#### 42", "42"),
        ("Answer\u00a0:\u00a042", "42"),
        ("\u200bAnswer: 42", "42"),
        ("- Answer: 42", "42"),
        ("2. Final answer: 42", "42"),
        ("### Final Answer\n\n42", "42"),
        ("Therefore, the answer is 42. That was easy.", "42"),
        ("Final Answer: The final answer is $42$. I hope it is correct.", "$42$"),
        ("\u7b54\u6848\u662f 42", "42"),
        ("\\boxed42", "42"),
        ("\\boxed{42}\nAnswer: $\\boxed{}$", "42"),
    ],
)
def test_the_last_box_or_answer_line_wins(text: str, answer: str) -> None:
    assert extract_answer(text).answer == answer


BOXES = st.sampled_from(["\\boxed{{{}}}", "\\fbox{{{}}}", "Answer: {}", "Final answer\uff1a {}", "**Answer:** {}"])


@given(st.lists(st.tuples(BOXES, st.integers(0, 999)), min_size=1, max_size=6), st.text("xyz .\n", max_size=20))
def test_whatever_is_said_last_is_the_answer(said: list[tuple[str, int]], after: str) -> None:
    text = "\n".join(form.format(number) for form, number in said)
    assert extract_answer(f"thinking\n{text}\n{after}").answer == str(said[-1][1])


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("(1,100)", "(1100)"),
        ("[1,100]", "[1100]"),
        ("\\{1,100\\}", "\\{1100\\}"),
        ("{1,100}", "{1100}"),
        ("\\left(1,100\\right)", "\\left(1100\\right)"),
        ("(0,1,000)", "(0,1000)"),
        ("23", "2\u00b3"),
        ("11/2", "1\u00bd"),
        ("x2", "x\u00b2"),
        ("10", "1\u2070"),
    ],
)
def test_values_that_only_look_alike_are_not_taken_for_equal(first: str, second: str) -> None:
    assert same_value(first, second) is not True


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("1,100", "1100"),
        ("1,234,567.5", "1234567.5"),
        ("1{,}100", "1100"),
        ("10\\,000", "10000"),
        ("\uff14\uff12", "42"),
        ("\u0664\u0662", "42"),
        ("\uff0d5", "-5"),
        ("\u22125", "-5"),
        ("1\u00bd", "3/2"),
        ("\u00be", "0.75"),
        ("2^{3}", "2\u00b3"),
        ("(1,100)", "(1,100)"),
        ("\\frac{1,000}{3}", "1000/3"),
        ("42\u3002", "42"),
        ("4\u200b2", "42"),
        ("1\u2009000", "1000"),
        ("12\u202f345\u202f678", "12345678"),
        ("1 000", "1000"),
        ("90\u00b0", "90"),
        ("90^\\circ", "90"),
        ("\u20135", "-5"),
        ("1e5", "100000"),
        ("2.5E-3", "0.0025"),
        ("1 1/2", "3/2"),
        ("1 125/1000", "9/8"),
        ("-1 1/2", "-1.5"),
        ("\u221e", "\\infty"),
        ("\u221a2", "\\sqrt{2}"),
    ],
)
def test_one_value_in_several_spellings_is_equal(first: str, second: str) -> None:
    assert same_value(first, second) is True
    assert same_value(second, first) is True


@given(st.integers(-(10**9), 10**9))
def test_thousands_change_no_number_and_digits_of_any_script_are_digits(number: int) -> None:
    assert same_value(f"{number:,}", str(number)) is True
    other = "".join(chr(0xFF10 + int(digit)) if digit.isdigit() else digit for digit in str(number))
    assert same_value(other, str(number)) is True
    if abs(number) >= 1000:
        assert same_value(f"({number:,})", f"({number})") is not True


@given(st.text(max_size=80))
def test_reading_and_tidying_never_raise_and_tidying_twice_changes_nothing_of_plain_numbers(text: str) -> None:
    extract_answer(text)
    same_value(text, text)


def test_reading_stays_linear_whatever_is_repeated() -> None:
    started_s = time.perf_counter()
    for piece in ("\\boxed{}", "\\boxed{", "Answer:\n", "Answer: \n* _", "#### ", "\\boxed ", "{" * 5, "1,000,", "answer is "):
        extract_answer(piece * 40_000)
    assert time.perf_counter() - started_s < 20.0


def test_spaces_and_digits_without_end_keep_nobody_waiting() -> None:
    started_s = time.perf_counter()
    for text in ("answer" + " " * 60_000 + "x", "answer is" + "*" * 60_000, "- " * 60_000):
        extract_answer(text)
    for text in ("\u00b2" * 20_000, "1" * 20_000 + "\u00bd"):
        same_value(text, "1")
    assert time.perf_counter() - started_s < 5.0
