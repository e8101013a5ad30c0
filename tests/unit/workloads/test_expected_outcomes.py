"""R2E-Gym's verdict: the tests end as the instance says, not all of them passing."""

import asyncio
import json
from pathlib import Path

import pytest

from libra_core.config.workload import R2EGymConfig
from libra_core.errors import ConfigError, SandboxLostError
from libra_core.workloads.r2e_gym.expected_outcomes import read_expected, read_outcomes
from libra_core.workloads.r2e_gym.image_instances import ImageRepositories, load_instances
from libra_core.workloads.sandbox.types import CommandOutcome, SandboxCommand, SandboxResult

LOG = """
=================== FAILURES ===================
PASSED r2e_tests/test_1.py::test_never_ran
=========================== short test summary info ============================
PASSED r2e_tests/test_1.py::TestCodec::test_reads[a::b]
PASSED r2e_tests/test_1.py::test_plain
FAILED r2e_tests/test_1.py::test_old - AssertionError: 1 - 2
ERROR r2e_tests/test_2.py - ImportError
\x1b[31mFAILED\x1b[0m r2e_tests/test_1.py::test_red - boom
=================== 2 failed, 2 passed, 1 error in 0.10s ===================
"""
OUTCOMES = {"TestCodec.test_reads[a.b]": "PASSED", "test_plain": "PASSED", "test_old": "FAILED", "test_red": "FAILED"}
ROW = {"docker_image": "r2e/image:1", "problem_statement": "Bad.", "repo_name": "r", "commit_hash": "c"}


def test_the_summary_gives_a_status_to_every_named_test() -> None:
    assert read_outcomes(LOG) == OUTCOMES


def test_a_log_without_a_summary_has_no_outcomes() -> None:
    assert read_outcomes("PASSED a.py::test_x") == {}


def test_expected_names_lose_colours_and_reasons() -> None:
    text = json.dumps({"\x1b[1mtest_plain\x1b[0m": "PASSED", "test_old - AssertionError": "FAILED", "": "ERROR"})
    assert read_expected(text) == {"test_plain": "PASSED", "test_old": "FAILED"}


@pytest.mark.parametrize("text", ["[1]", "{"])
def test_what_is_no_object_is_refused_with_its_row(text: str, tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text(json.dumps({**ROW, "expected_output_json": text}))
    with pytest.raises(ConfigError, match="row 1 cannot be read"):
        load_instances(path)


class Container:
    """Applies patches and prints a log for the tests, which end with exit code 1, since some are expected to fail."""

    def __init__(self, log: str, *, removes: bool = True) -> None:
        self._log = log
        self._removes = removes
        self.closed = False
        self.scripts: list[str] = []
        self.walls_s: list[float | None] = []

    async def run(self, command: SandboxCommand) -> SandboxResult:
        self.scripts.append(command.argv[-1])
        self.walls_s.append(command.wall_s)
        tests = "bash run_tests.sh" in command.argv[-1]
        failed = tests or (not self._removes and command.argv[-1].startswith("rm "))
        return SandboxResult(
            outcome=CommandOutcome.EXITED, exit_code=1 if failed else 0, output=self._log if tests else "", duration_s=0.0
        )

    async def close(self) -> None:
        self.closed = True


class Host:
    def __init__(self, log: str, *, removes: bool = True) -> None:
        self._log = log
        self._removes = removes
        self.opened: list[Container] = []

    async def open_image(self, image: str) -> Container:
        self.opened.append(Container(self._log, removes=self._removes))
        return self.opened[-1]


@pytest.mark.parametrize(("change", "passes"), [({}, True), ({"test_plain": "FAILED"}, False), ({"test_more": "PASSED"}, False)])
def test_an_instance_passes_when_every_test_ends_as_expected(change: dict[str, str], passes: bool, tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text(json.dumps({**ROW, "expected_output_json": json.dumps({**OUTCOMES, **change})}))
    repositories = ImageRepositories(load_instances(path), R2EGymConfig(), Host(LOG))  # type: ignore[arg-type]
    assert asyncio.run(repositories.passes("r/c", "diff")) is passes


def test_the_policy_sees_no_hidden_test_and_the_verdict_does(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text(json.dumps({**ROW, "expected_output_json": json.dumps(OUTCOMES)}))
    host = Host(LOG)
    repositories = ImageRepositories(load_instances(path), R2EGymConfig(), host)  # type: ignore[arg-type]

    async def play() -> bool:
        sandbox = await repositories.open("r/c")
        return await repositories.passes("r/c", await repositories.collect(sandbox, "r/c"))

    assert asyncio.run(play())
    agent, judge = host.opened
    assert agent.scripts[0] == "rm -rf /r2e_tests r2e_tests run_tests.sh"
    assert "':!r2e_tests' ':!run_tests.sh'" in agent.scripts[1]
    assert not [script for script in judge.scripts if script.startswith("rm ")]
    assert "ln -s /r2e_tests r2e_tests" in judge.scripts[-1]
    assert judge.walls_s[-1] == R2EGymConfig().test_wall_s


def test_a_sandbox_that_keeps_its_hidden_tests_is_lost_and_closed(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text(json.dumps(ROW))
    host = Host(LOG, removes=False)
    repositories = ImageRepositories(load_instances(path), R2EGymConfig(), host)  # type: ignore[arg-type]
    with pytest.raises(SandboxLostError, match="hidden tests"):
        asyncio.run(repositories.open("r/c"))
    assert host.opened[0].closed
