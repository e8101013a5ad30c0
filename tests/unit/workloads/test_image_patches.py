"""What a policy changed in a container reaches the hidden tests byte for byte, and these stay as they are; with real git."""

import asyncio
import base64
import json
import shutil
import subprocess
from pathlib import Path

import pytest

from libra_core.config.workload import R2EGymConfig
from libra_core.workloads.r2e_gym.image_instances import ImageRepositories, load_instances
from libra_core.workloads.sandbox.types import CommandOutcome, SandboxCommand, SandboxResult

pytestmark = pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed")
LATIN = "caf\u00e9\n".encode("latin-1")


class Shell:
    """Runs everything but the tests for real, in the configured folder."""

    async def run(self, command: SandboxCommand) -> SandboxResult:
        if "pytest" in command.argv[-1]:
            return SandboxResult(outcome=CommandOutcome.EXITED, exit_code=0, output="", duration_s=0.0)
        done = subprocess.run(command.argv, input=command.input.encode(errors="replace"), capture_output=True, check=False)
        output = (done.stdout + done.stderr).decode(errors="replace")
        return SandboxResult(outcome=CommandOutcome.EXITED, exit_code=done.returncode, output=output, duration_s=0.0)

    async def close(self) -> None:
        return None


class Host:
    """Every container finds the repository as it was committed."""

    def __init__(self, repository: Path) -> None:
        self._repository = repository

    async def open_image(self, image: str) -> Shell:
        git(self._repository, "reset", "--hard")
        git(self._repository, "clean", "-fdx")
        return Shell()


def git(folder: Path, *words: str) -> bytes:
    identity = ("-c", "user.name=a", "-c", "user.email=a@b", "-c", "core.autocrlf=input", "-c", "core.safecrlf=warn")
    return subprocess.run(["git", *identity, *words], cwd=folder, capture_output=True, check=True).stdout


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    folder = tmp_path / "repository"
    folder.mkdir()
    git(folder, "init", "-q")
    (folder / "code.py").write_bytes(LATIN)
    (folder / "run_tests.sh").write_text("exit 1\n")
    git(folder, "add", "-A")
    git(folder, "commit", "-qm", "start")
    return folder


@pytest.fixture
def repositories(repository: Path, tmp_path: Path) -> ImageRepositories:
    row = {"instance_id": "i", "problem_statement": "p", "FAIL_TO_PASS": '["t"]', "image_name": "image"}
    (tmp_path / "rows.jsonl").write_text(json.dumps(row))
    settings = R2EGymConfig(repo_folder=str(repository))
    return ImageRepositories(load_instances(tmp_path / "rows.jsonl"), settings, Host(repository))  # type: ignore[arg-type]


def test_bytes_that_are_no_text_and_warnings_of_git_change_nothing(repository: Path, repositories: ImageRepositories) -> None:
    git(repository, "config", "core.autocrlf", "input")

    async def play() -> bool:
        sandbox = await repositories.open("i")
        (repository / "code.py").write_bytes(LATIN + b"\xff = 1\n")
        (repository / "windows.txt").write_bytes(b"a\r\nb\r\n")
        (repository / "image.bin").write_bytes(bytes(range(256)))
        return await repositories.passes("i", await repositories.collect(sandbox, "i"))

    assert asyncio.run(play())
    assert (repository / "code.py").read_bytes() == LATIN + b"\xff = 1\n"
    assert (repository / "image.bin").read_bytes() == bytes(range(256))


def test_a_forged_patch_cannot_reach_the_hidden_tests(repository: Path, repositories: ImageRepositories) -> None:
    (repository / "run_tests.sh").write_text("exit 0\n")
    (repository / "r2e_tests").mkdir()
    (repository / "r2e_tests" / "test_easy.py").write_text("")
    (repository / "code.py").write_bytes(b"repaired\n")
    git(repository, "add", "-A")
    forged = base64.b64encode(git(repository, "diff", "--cached", "--binary", "HEAD")).decode()
    assert asyncio.run(repositories.passes("i", forged))
    assert (repository / "code.py").read_bytes() == b"repaired\n"
    assert (repository / "run_tests.sh").read_text() == "exit 1\n"
    assert not (repository / "r2e_tests").exists()


def test_what_is_no_patch_earns_nothing(repositories: ImageRepositories) -> None:
    assert not asyncio.run(repositories.passes("i", "no base64 \ud800"))
    assert not asyncio.run(repositories.passes("i", base64.b64encode(b"no patch").decode()))
