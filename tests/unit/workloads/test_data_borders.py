"""Rows of files are checked where they are read: what would be wrong hours later, or silently, is a sentence at once."""

import gzip
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from libra_core.config.loading import validate_config
from libra_core.errors import ConfigError
from libra_core.files import json_objects, parse_json
from libra_core.planning.history_file import read_history
from libra_core.routing.evaluate.recorded import read_prompts, read_recorded
from libra_core.workloads.check.codec import write_byte_model
from libra_core.workloads.dapo_math.problems import load_problems
from libra_core.workloads.r2e_gym.image_instances import load_instances
from libra_core.workloads.rows import file_labels, load_files, read_rows
from libra_core.workloads.search_r1.corpus_index import read_passages
from libra_core.workloads.search_r1.questions_file import load_questions

QUESTION = {"question": "Who?", "answer": "Ada"}
SWE = {"instance_id": "i", "problem_statement": "p", "FAIL_TO_PASS": '["t"]', "image_name": "image"}
R2E = {"docker_image": "image", "problem_statement": "p", "commit_hash": "c"}
HISTORY = {"prompt_tokens": 5, "generated_tokens": [3]}
RECORDED = {"task": "a", "prompt_tok": 1, "gen_tok": [2], "tool": ["t"], "status": ["ok"], "ret_tok": [0]}


def file(folder: Path, *rows: object, name: str = "rows.jsonl") -> Path:
    path = folder / name
    path.parent.mkdir(exist_ok=True)
    path.write_text("\n".join(row if isinstance(row, str) else json.dumps(row) for row in rows), encoding="utf-8")
    return path


@pytest.mark.parametrize(
    ("row", "says"),
    [
        ({"question": "q?", "golden_answers": [None, "x"]}, "row 2: golden_answers is None"),
        ({"question": "q?", "answer": math.nan}, "row 2: answer is nan; an answer is a text or a finite number"),
        ({"question": "q?", "answer": True}, "row 2: answer is True"),
        ({"question": "q?", "answers": [["x"]]}, r"row 2: answers is \['x'\]"),
        ({"question": "q?", "answers": ["x", " "]}, "row 2: answers is blank"),
        ({"question": "q?", "answer": "?!"}, "has no letter or digit, so that no answer can equal it"),
        ({"question": " \u200b\t", "answer": "x"}, "row 2: question is blank"),
        ({"question": "q?", "answer": "x", "id": [1]}, r"row 2: id is \[1\]; an id is a text or a whole number"),
    ],
)
def test_a_question_that_cannot_be_asked_or_judged_is_refused(tmp_path: Path, row: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        load_questions(file(tmp_path, QUESTION, row))


def test_numbers_are_answers_as_one_would_write_them(tmp_path: Path) -> None:
    path = file(tmp_path, {"question": "q?", "answers": [42, 42.0, -3.5, "42.0"]})
    assert load_questions(path)[0].answers == ("42", "42", "-3.5", "42.0")


def test_no_two_rows_have_one_id(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"row 3 has the id 'rows/7', as .*row 1 has, and is another one"):
        load_questions(file(tmp_path, {**QUESTION, "id": 7}, QUESTION, {"question": "Why?", "answer": "x", "id": "7"}))
    named = [{**QUESTION, "id": number} for number in (1, 0, 2)]
    keys = [question.key for question in load_questions(file(tmp_path, *named, QUESTION, QUESTION, {**QUESTION, "_id": ""}))]
    assert keys[:3] == ["rows/1", "rows/0", "rows/2"]
    assert len(set(keys)) == 6


def test_ids_that_a_table_holds_as_floats_are_whole_numbers(tmp_path: Path) -> None:
    path = tmp_path / "rows.parquet"
    table = {"id": [7.0, float("nan"), None], "question": ["a", "b", "c"], "answer": ["x", "y", "z"]}
    pq.write_table(pa.table(table), path)
    assert [question.key for question in load_questions(path)] == ["rows/7", "rows/#2", "rows/#3"]
    with pytest.raises(ConfigError, match=r"id is 7\.5; an id is a text or a whole number"):
        load_questions(file(tmp_path, {**QUESTION, "id": 7.5}))


@given(
    st.lists(
        st.none() | st.integers(0, 9) | st.sampled_from(["", " ", "a", "#1", "#2", "##2", "#a", "1"]), min_size=1, max_size=8
    )
)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60, deadline=None)
def test_ids_are_different_or_refused(tmp_path: Path, ids: list[Any]) -> None:
    written = [str(value).strip() for value in ids if value is not None and str(value).strip()]
    path = file(tmp_path, *({"question": f"{number}?", "answer": "x", "id": value} for number, value in enumerate(ids)))
    if len(set(written)) < len(written):
        with pytest.raises(ConfigError, match="has the id"):
            load_questions(path)
    else:
        assert len({question.key for question in load_questions(path)}) == len(ids)


@pytest.mark.parametrize("name", ["rows.JSONL", "rows.ndjson", "with space é/rows.jsonl", "link.jsonl"])
def test_a_file_of_lines_is_known_by_any_of_its_names(tmp_path: Path, name: str) -> None:
    if name == "link.jsonl":
        (tmp_path / name).symlink_to(file(tmp_path, QUESTION))
    else:
        file(tmp_path, QUESTION, name=name)
    assert load_questions(tmp_path / name)[0].answers == ("Ada",)


def test_files_of_one_name_keep_their_rows_apart(tmp_path: Path) -> None:
    paths = [file(tmp_path, QUESTION, name=name) for name in ("nq/train.jsonl", "hotpot/train.jsonl")]
    assert [question.key for question in load_files([str(path) for path in paths], load_questions)] == [
        "nq/train/#1",
        "hotpot/train/#1",
    ]
    apart = [file(tmp_path, QUESTION, name=name) for name in ("nq.dev.jsonl", "nq.train.jsonl")]
    assert file_labels(apart) == ("nq.dev", "nq.train")
    with pytest.raises(ConfigError, match="is named twice"):
        file_labels([apart[0], apart[0]])


@pytest.mark.parametrize(
    ("row", "says"),
    [
        ({"problem": " \n", "answer": "4"}, "row 1: problem is blank"),
        ({"prompt": "\u200b", "answer": "4"}, "row 1: prompt is blank"),
        ({"question": "", "answer": "so\n#### 4"}, "row 1: question is blank"),
        ({"prompt": [{"role": "user", "content": " "}], "reward_model": {"ground_truth": "4"}}, "row 1: prompt is blank"),
        ({"problem": "p", "answer": math.nan}, "row 1: answer is nan"),
        ({"prompt": "p", "ground_truth": ["4"]}, r"row 1: ground_truth is \['4'\]"),
        ({"prompt": [{"content": "p"}], "reward_model": {"ground_truth": math.inf}}, "ground_truth is inf"),
        ({"problem": "p", "answer": "$$"}, "holds nothing to compare with"),
    ],
)
def test_a_problem_that_cannot_be_asked_or_judged_is_refused(tmp_path: Path, row: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        load_problems(file(tmp_path, row))


@pytest.mark.parametrize(
    ("row", "says"),
    [
        ({**SWE, "FAIL_TO_PASS": "[]"}, "row 1: FAIL_TO_PASS names no test"),
        ({**SWE, "FAIL_TO_PASS": [], "PASS_TO_PASS": ["t"]}, "row 1: FAIL_TO_PASS names no test"),
        ({**SWE, "FAIL_TO_PASS": None}, "row 1: FAIL_TO_PASS names no test"),
        ({**SWE, "FAIL_TO_PASS": ""}, "row 1: FAIL_TO_PASS names no test"),
        ({**SWE, "FAIL_TO_PASS": [None]}, "a test in FAIL_TO_PASS is None"),
        ({**SWE, "FAIL_TO_PASS": {"t": 1}}, "FAIL_TO_PASS holds dict, not a list of tests"),
        ({**SWE, "FAIL_TO_PASS": "not json"}, "FAIL_TO_PASS is not JSON"),
        ({**SWE, "problem_statement": " "}, "problem_statement is blank"),
        ({**R2E, "problem_statement": "\u00a0"}, "problem_statement is blank"),
        ({**R2E, "expected_output_json": "{}"}, "expected_output_json names no test"),
    ],
)
def test_a_repository_that_cannot_be_asked_or_judged_is_refused(tmp_path: Path, row: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        load_instances(file(tmp_path, row))


def test_two_repositories_of_one_id_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="row 2 has the id 'i', as"):
        load_instances(file(tmp_path, SWE, {**SWE, "problem_statement": "other"}))
    paths = [str(file(tmp_path, {**SWE, "repo": name}, name=name)) for name in ("a.jsonl", "b.jsonl")]
    with pytest.raises(ConfigError, match=r"b\.jsonl, row 1 has the id 'i', as .*a\.jsonl, row 1"):
        load_files(paths, load_instances)


def test_a_row_that_is_there_twice_counts_once(tmp_path: Path) -> None:
    path = file(tmp_path, SWE, {**SWE, "instance_id": "j"}, SWE)
    assert [instance.key for instance in load_instances(path)] == ["i", "j"]
    copy = file(tmp_path, SWE, name="copy.jsonl")
    assert len(load_files([str(path), str(copy)], load_instances)) == 2
    assert len(load_questions(file(tmp_path, {**QUESTION, "id": 7}, {**QUESTION, "id": "7"}))) == 1


READERS: list[tuple[Callable[[Path], Any], dict[str, Any]]] = [
    (load_questions, QUESTION),
    (load_problems, {"problem": "p", "answer": "4"}),
    (load_instances, SWE),
    (lambda path: list(read_passages(path)), {"title": "t", "text": "x"}),
    (read_history, HISTORY),
    (read_recorded, RECORDED),
    (read_prompts, {"task": "a", "text": "x"}),
]


@pytest.mark.parametrize(
    ("read", "row"), READERS, ids=["questions", "problems", "instances", "corpus", "history", "recorded", "prompts"]
)
def test_every_reader_takes_a_byte_order_mark_and_refuses_half_a_character(
    tmp_path: Path, read: Callable[[Path], Any], row: dict[str, Any]
) -> None:
    plain = file(tmp_path, row)
    expected = read(plain)
    text = json.dumps(row).encode()
    plain.write_bytes(b"\xef\xbb\xbf" + text + b"\r\n")
    assert read(plain) == expected
    packed = tmp_path / "rows.jsonl.gz"
    packed.write_bytes(gzip.compress(b"\xef\xbb\xbf" + text))
    assert len(read(packed)) == len(expected)
    plain.write_bytes(text[:-1] + b', "more": "\\ud800"}')
    with pytest.raises(ConfigError, match="line 1 holds half of a surrogate pair"):
        read(plain)
    plain.write_bytes(text[:-1] + b', "more": "\xed\xa0\x80"}')
    with pytest.raises(ConfigError, match="is not text that can be read"):
        read(plain)
    for wide in ("utf-16-le", "utf-16-be", "utf-32-le"):
        plain.write_bytes(json.dumps(row).encode(wide))
        with pytest.raises(ConfigError, match="it holds zero bytes, as UTF-16 does; save it as UTF-8"):
            read(plain)
    plain.write_text("[" * 100_000)
    with pytest.raises(ConfigError, match="line 1 is not JSON"):
        read(plain)
    plain.write_text('{"a": 1' + "0" * 5000 + "}")
    with pytest.raises(ConfigError, match="line 1"):
        read(plain)


def test_whole_pairs_and_separators_inside_texts_are_kept() -> None:
    assert parse_json('{"a": "\\ud83d\\ude00"}', "x") == {"a": "\U0001f600"}


def test_lines_end_at_line_feeds_alone(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text(json.dumps({"a": "x\u2028y\x85z"}, ensure_ascii=False) + "\n\n" + json.dumps({"a": "b"}), encoding="utf-8")
    assert [(row["a"], where.rpartition(" ")[2]) for row, where in json_objects(path, "file")] == [
        ("x\u2028y\x85z", "1"),
        ("b", "3"),
    ]


@given(st.dictionaries(st.text(max_size=5), st.text(max_size=8) | st.integers() | st.none(), max_size=3), st.booleans())
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60, deadline=None)
def test_what_json_writes_is_read_again(tmp_path: Path, row: dict[str, Any], escaped: bool) -> None:
    path = tmp_path / "any.jsonl"
    path.write_text(json.dumps(row, ensure_ascii=escaped), encoding="utf-8", newline="")
    assert list(read_rows(path)) == [row]


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({"prompt_tokens": True}, "prompt_tokens is True"),
        ({"prompt_tokens": 5.5}, "prompt_tokens is 5.5"),
        ({"generated_tokens": [10**12]}, "generated_tokens is 1000000000000; it must be a whole number from 0 to"),
        ({"tool_s": [math.nan]}, "tool_s is nan"),
        ({"tool_s": [-0.5]}, "tool_s is -0.5"),
        ({"tool_tokens": 5}, "tool_tokens must be a list"),
        ({"step": "3"}, "step is '3'"),
    ],
)
def test_a_history_holds_counts_and_seconds(tmp_path: Path, changed: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=f"line 1: {says}"):
        read_history(file(tmp_path, {**HISTORY, **changed}))


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({"task": None}, "task is None"),
        ({"task": " "}, "task is blank"),
        ({"tool_s": [10**400]}, "tool_s is"),
        ({"gen_tok": [True]}, "gen_tok"),
    ],
)
def test_a_recording_names_its_task_and_holds_numbers(tmp_path: Path, changed: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        read_recorded(file(tmp_path, {**RECORDED, **changed}))


def test_one_task_has_one_text(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="line 2: the task 'a' has another text than above"):
        read_prompts(file(tmp_path, {"task": "a", "text": "x"}, {"task": "a", "text": "y"}))


def census(tmp_path: Path, training: Path, heldout: Path | None = None, **rollout: int) -> tuple[str, ...]:
    from libra_core.workloads.build import build_workload

    folder = tmp_path / "model"
    folder.mkdir(exist_ok=True)
    write_byte_model(folder)
    held = {"heldout_files": [str(heldout)], "heldout_prompts": 1} if heldout else {"heldout_prompts": 0}
    workload = {"kind": "dapo_math", "train_files": [str(training)], **held}
    config = validate_config({"workload": workload, "rollout": {"max_new_tokens": 8, "max_context_tokens": 400, **rollout}})
    return build_workload(config, folder).prompts.census()


def test_held_out_prompts_that_are_trained_are_said(tmp_path: Path) -> None:
    rows = [{"problem": f"p{number}", "answer": "4"} for number in range(4)]
    training = file(tmp_path, *rows, name="train.jsonl")
    assert census(tmp_path, training) == ()
    (note,) = census(tmp_path, training, training)
    assert note.startswith("4 of 4 held-out prompts are among those of workload.train_files")
    (note,) = census(tmp_path, training, file(tmp_path, rows[0], {"problem": "new", "answer": "4"}, name="test.jsonl"))
    assert note.startswith("1 of 2 held-out prompts")


def test_prompts_that_fill_the_context_are_skipped_with_a_count_and_refused_if_all_do(tmp_path: Path) -> None:
    training = file(tmp_path, {"problem": "p", "answer": "4"}, {"problem": "x" * 2000, "answer": "4"}, name="train.jsonl")
    (note,) = census(tmp_path, training)
    assert note == "1 of 2 training prompts leave no room to answer within rollout.max_context_tokens = 400 and are skipped"
    with pytest.raises(
        ConfigError, match=r"none of 2 training prompts leaves room to answer within rollout\.max_context_tokens = 50"
    ):
        census(tmp_path, training, max_context_tokens=50)
