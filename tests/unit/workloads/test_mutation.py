"""Faults change one line of a function's body and leave the rest as written."""

import json
from pathlib import Path

import pytest

from libra_core.errors import ConfigError
from libra_core.workloads.r2e_gym.image_instances import image_of, load_instances, pytest_command
from libra_core.workloads.r2e_gym.mutation import functions_with_examples, mutants
from libra_core.workloads.r2e_gym.workspace import read_changes

SOURCE = '''
def clamp(value, low=0, *, high=9):
    """Keep a value in bounds.

    >>> clamp(12)
    9
    """
    if value < low and True:
        return low + 0
    return high if not value <= high else value


class Box:
    def size(self):
        """
        >>> Box().size()
        3
        """
        return 1 + 2

    def _hidden(self):
        """
        >>> 1
        1
        """
        return 1


def no_examples():
    """Nothing to run."""
    return 1
'''


def test_public_functions_and_methods_with_examples_are_found() -> None:
    assert [function.qualname for function in functions_with_examples(SOURCE)] == ["clamp", "Box.size"]


def test_each_fault_changes_one_line_of_the_body() -> None:
    clamp, size = functions_with_examples(SOURCE)
    lines = SOURCE.split("\n")
    for function in (clamp, size):
        for mutant in mutants(SOURCE, function):
            assert lines[mutant.line - 1] == mutant.before != mutant.after
            assert function.node.body[1].lineno <= mutant.line <= (function.node.end_lineno or 0)
    after = {mutant.after.strip() for mutant in mutants(SOURCE, clamp)}
    assert {"if value <= low and True:", "if value < low or True:", "if value < low and False:", "return low - 0"} <= after
    assert "return high if value <= high else value" in after
    assert {mutant.after.strip() for mutant in mutants(SOURCE, size)} == {"return 1 - 2", "return 2 + 2", "return 1 + 3"}


@pytest.mark.parametrize(
    "submission",
    [
        "",
        "nothing",
        "[1]",
        '{"/etc/passwd": "x"}',
        '{"../out": "x"}',
        '{"a/../../b": "x"}',
        '{"a": 1}',
        '{"": "x"}',
        '{"a\\u0000": "x"}',
    ],
)
def test_a_submission_can_only_name_files_below(submission: str) -> None:
    assert read_changes(submission) is None


def test_a_submission_is_texts_by_path() -> None:
    assert read_changes('{"a/b.py": "x", "c.py": null}') == {"a/b.py": "x", "c.py": None}


def test_public_instances_load(tmp_path: Path) -> None:
    rows = [
        {
            "instance_id": "astropy__astropy-12907",
            "repo": "astropy/astropy",
            "problem_statement": "Wrong.",
            "test_patch": "diff",
            "FAIL_TO_PASS": '["a/test.py::test_x[1]"]',
            "PASS_TO_PASS": ["a/test.py::test_y"],
        },
        {"repo_name": "sympy", "docker_image": "namanjain12/sympy_final:1", "commit_hash": "abc", "problem_statement": "Bad."},
    ]
    path = tmp_path / "instances.json"
    path.write_text(json.dumps(rows))
    swe, r2e = load_instances(path)
    assert swe.tests == ("a/test.py::test_x[1]", "a/test.py::test_y")
    assert image_of(swe, "swebench/sweb.eval.x86_64.{instance_id}") == "swebench/sweb.eval.x86_64.astropy_1776_astropy-12907"
    assert "'a/test.py::test_x[1]' a/test.py::test_y" in pytest_command(swe)
    assert image_of(r2e, None) == "namanjain12/sympy_final:1"
    assert pytest_command(r2e).endswith("; bash run_tests.sh")
    path.write_text('[{"instance_id": "x"}]')
    with pytest.raises(ConfigError, match="row 1 is of no known schema: it has instance_id"):
        load_instances(path)
