"""Real files of the public data sets, where `LIBRA_DATA` has them."""

import asyncio
from itertools import pairwise
from pathlib import Path

import pytest

from libra_core.config.loading import data_folder
from libra_core.workloads.dapo_math.answers import extract_answer
from libra_core.workloads.dapo_math.grading import GraderPool
from libra_core.workloads.dapo_math.problems import load_problems
from libra_core.workloads.r2e_gym.image_instances import load_instances
from libra_core.workloads.rows import read_rows
from libra_core.workloads.search_r1.corpus_index import open_corpus
from libra_core.workloads.search_r1.questions_file import load_questions

TASKS = data_folder() / "tasks"
SAME_AS_NEXT = {"math500_test.jsonl.gz": [("5", "x=5")]}
"""Pairs of neighbouring problems whose answers really are the same."""


def _file(name: str) -> Path:
    path = TASKS / name
    if not path.is_file():
        pytest.skip(f"{path} is not there; LIBRA_DATA names the folder of recorded data")
    return path


def _agreements(pairs: list[tuple[str, str]]) -> list[bool]:
    async def grade() -> list[bool]:
        pool = GraderPool(workers=1, deadline_s=60.0)
        try:
            return [await pool.equal(gold, answer) for gold, answer in pairs]
        finally:
            pool.close()

    return asyncio.run(grade())


@pytest.mark.parametrize(
    ("name", "count"), [("math500_test.jsonl.gz", 500), ("gsm8k_test.jsonl.gz", 1319), ("aime24.jsonl", 30), ("aime25.jsonl", 30)]
)
def test_gold_answers_equal_themselves_and_not_their_neighbours(name: str, count: int) -> None:
    problems = load_problems(_file(name))
    assert len(problems) == count
    written = [extract_answer(f"So the answer is \\boxed{{{problem.answer}}}.").answer or "" for problem in problems]
    own = _agreements([(problem.answer, answer) for problem, answer in zip(problems, written, strict=True)])
    wrong = {problem.answer for problem, equal in zip(problems, own, strict=True) if not equal}
    print(name, "not equal to themselves:", sorted(wrong))
    assert wrong == set()
    neighbours = [(first.answer, second.answer) for first, second in pairwise(problems) if first.answer != second.answer]
    confused = [pair for pair, equal in zip(neighbours, _agreements(neighbours), strict=True) if equal]
    print(name, "equal to the next one's:", confused)
    assert confused == SAME_AS_NEXT.get(name, [])


def test_dapo_rows_load_by_schema() -> None:
    rows = load_problems(_file("dapo_math_17k_sample5.jsonl"))
    assert rows[0].answer == "10"
    assert len(rows) == 5
    aime = load_problems(_file("dapo_aime2024.parquet"))
    assert len(aime) == 960
    assert aime[0].answer == "540"
    assert aime[0].source == "math_dapo"
    assert "Answer:" in aime[0].messages[0].content


def test_deepmath_loads() -> None:
    assert len(load_problems(_file("deepmath_1500.jsonl.gz"))) == 1500


def test_gold_passages_are_found(tmp_path: Path) -> None:
    """HotpotQA's questions against the thousand passages of all of them."""
    rows = list(read_rows(_file("hotpotqa_distractor_100.jsonl.gz")))
    assert len(load_questions(TASKS / "hotpotqa_distractor_100.jsonl.gz")) == 100
    index = open_corpus(_file("hotpotqa_distractor_100_corpus.json.gz"), tmp_path)
    some = both = 0
    for row in rows:
        found = {passage.title for passage in index.best(row["question"], 10)}
        gold = set(row["supporting_facts"]["title"])
        some += bool(found & gold)
        both += gold <= found
    print(f"HotpotQA-100, BM25 top 10 of 1,000: a gold passage {some} %, all gold passages {both} %")
    assert some >= 90


def test_swe_bench_instances_load() -> None:
    instances = load_instances(_file("swe_bench_dev_easy.json"))
    assert [instance.package for instance in instances[:2]] == ["pydicom/pydicom", "pylint-dev/astroid"]
    assert all(instance.issue and instance.tests and "diff --git" in instance.test_patch for instance in instances)
