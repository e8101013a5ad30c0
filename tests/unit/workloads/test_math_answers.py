"""What counts as an answer, and when two answers are the same."""

import asyncio
import sys
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
    ]
    assert graded(pairs) == [True, True, True, True, False, False, False, False]


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
