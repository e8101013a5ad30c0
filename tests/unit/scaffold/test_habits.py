"""Hooks and workflow do what `make check` and `.ci/run` do, with tools that are there."""

from pathlib import Path

import yaml

ROOT = Path(__file__).parents[3]


def _check_of_the_makefile() -> str:
    recipe = (ROOT / "Makefile").read_text().partition("\ncheck: setup\n")[2].partition("\n\n")[0]
    return recipe.replace("$(BIN)", ".venv/bin")


def test_every_hook_is_a_part_of_the_check() -> None:
    hooks = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())["repos"][0]["hooks"]
    assert len(hooks) == 7
    for hook in hooks:
        assert hook["entry"].removesuffix(" --force-exclude") in _check_of_the_makefile(), hook["id"]


def test_the_workflow_runs_what_everybody_can_run() -> None:
    workflow = yaml.safe_load((ROOT / ".github/workflows/ci.yml").read_text())
    steps = workflow["jobs"]["check-and-test"]["steps"]
    assert [step["run"] for step in steps if "run" in step] == [".ci/run"]


def test_ci_runs_the_checks_and_the_tests() -> None:
    script = (ROOT / ".ci/run").read_text().splitlines()
    assert [line for line in script if line.startswith("make ")] == ["make check", "make test", "make integration"]
    assert (ROOT / ".ci/run").stat().st_mode & 0o100


def test_the_commands_of_the_tests_leave_none_out() -> None:
    makefile = (ROOT / "Makefile").read_text()
    chosen = [line.split('-m "')[1].split('"')[0] for line in makefile.splitlines() if "$(PYTEST) tests/integration" in line]
    assert chosen == ["core and not slow", "not core and not slow"]
    assert "test: unit core\n" in makefile
