"""Instances of R2E-Gym and SWE-bench, which come with a container image."""

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from libra_core.borders import text_of
from libra_core.config.workload import R2EGymConfig
from libra_core.errors import ConfigError, SandboxLostError
from libra_core.files import parse_json
from libra_core.workloads.r2e_gym.expected_outcomes import read_expected, read_outcomes
from libra_core.workloads.rows import Keys, Row, read_rows
from libra_core.workloads.sandbox.host import SandboxHost
from libra_core.workloads.sandbox.types import CommandOutcome, Sandbox, SandboxCommand

_KNOWN: Final = "SWE-bench (instance_id, problem_statement, FAIL_TO_PASS) and R2E-Gym (docker_image, problem_statement)"
_HIDDEN: Final = "r2e_tests"
"""In the root of an R2E-Gym image; its script looks for it in the repository."""
_RUNNER: Final = "run_tests.sh"
_PATCH: Final = "/tmp/libra.patch"
_APPLY: Final = (
    f"base64 -d > {_PATCH} && "
    f"git apply --whitespace=nowarn --exclude='{_HIDDEN}' --exclude='{_HIDDEN}/*' --exclude={_RUNNER} {_PATCH}"
)
"""Without the hidden tests once more: the patch was made where the policy may have replaced any program."""
_ACTIVATE: Final = "if [ -f /opt/miniconda3/bin/activate ]; then . /opt/miniconda3/bin/activate testbed; fi"


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageInstance:
    key: str
    package: str
    """Repository, the stratum of reports."""
    issue: str
    image: str
    """Empty when the instance names none."""
    tests: tuple[str, ...]
    """Names that must pass; empty where the image brings its own `run_tests.sh`."""
    test_patch: str
    expected: Mapping[str, str] | None = None
    """Status of each test that `run_tests.sh` runs, where the instance states them; else the exit code decides."""


def load_instances(path: Path, label: str = "", keys: Keys | None = None) -> tuple[ImageInstance, ...]:
    """Raises `ConfigError` for a file that cannot be read, is empty, or has a row of no known schema, without a text or a test,
    or with the id of another one. Ids are the instances' own, so that `label` is not needed.
    """
    keys = keys or Keys()
    number = 0
    instances: list[ImageInstance] = []
    for number, row in enumerate(read_rows(path), start=1):
        where = f"{path}, row {number}"
        try:
            instance = _swe_bench(row) or _r2e(row)
        except ConfigError as error:
            raise ConfigError(f"{where}: {error}") from None
        except ValueError as error:
            raise ConfigError(f"{where} cannot be read: {error}") from None
        if instance is None:
            named = ", ".join(sorted(row)) or "no keys"
            raise ConfigError(f"{where} is of no known schema: it has {named}; known are {_KNOWN}")
        if keys.is_new(instance, where):
            instances.append(instance)
    if not number:
        raise ConfigError(f"{path} holds no rows")
    return tuple(instances)


def _swe_bench(row: Row) -> ImageInstance | None:
    if not all(isinstance(row.get(name), str) for name in ("instance_id", "problem_statement")) or "FAIL_TO_PASS" not in row:
        return None
    failing = _names(row["FAIL_TO_PASS"], "FAIL_TO_PASS")
    if not failing:
        raise ConfigError("FAIL_TO_PASS names no test, so that nothing shows whether the fault is repaired; leave the row out")
    tests = (*failing, *_names(row.get("PASS_TO_PASS"), "PASS_TO_PASS"))
    return ImageInstance(
        key=text_of(row["instance_id"], "instance_id"),
        package=str(row.get("repo") or "swe_bench"),
        issue=text_of(row["problem_statement"], "problem_statement"),
        image=str(row.get("image_name") or row.get("docker_image") or ""),
        tests=tests,
        test_patch=str(row.get("test_patch") or ""),
    )


def _r2e(row: Row) -> ImageInstance | None:
    image, issue = row.get("docker_image"), row.get("problem_statement") or row.get("prompt")
    if not isinstance(image, str) or not isinstance(issue, str):
        return None
    text_of(issue, "problem_statement")
    package = str(row.get("repo_name") or "r2e_gym")
    key = f"{package}/{row.get('commit_hash') or text_of(image, 'docker_image')}"
    stated = row.get("expected_output_json")
    expected = read_expected(stated) if isinstance(stated, str) else None
    return ImageInstance(key=key, package=package, issue=issue, image=image, tests=(), test_patch="", expected=expected)


def _names(value: Any, what: str) -> Sequence[str]:
    """SWE-bench keeps its lists as JSON texts."""
    if isinstance(value, str):
        value = parse_json(value, what) if value.strip() else []
    if not isinstance(value, (list, type(None))):
        raise ConfigError(f"{what} holds {type(value).__name__}, not a list of tests")
    return [text_of(name, f"a test in {what}") for name in value or ()]


class ImageRepositories:
    """Implements `repositories.Repositories` with a container per trajectory; what changed is carried as a patch of git."""

    def __init__(self, instances: Sequence[ImageInstance], settings: R2EGymConfig, host: SandboxHost) -> None:
        self._instances: dict[str, ImageInstance] = {}
        for instance in instances:
            if self._instances.setdefault(instance.key, instance) != instance:
                raise ConfigError(
                    f"instance {instance.key} is trained and held out, and the two rows differ; leave one of them out"
                )
        self._settings = settings
        self._host = host

    async def open(self, instance: str) -> Sandbox:
        """Without the hidden tests that R2E-Gym's images carry."""
        sandbox = await self._fresh(instance)
        try:
            if not self._instances[instance].tests:
                await _hide_tests(sandbox)
        except BaseException:
            await sandbox.close()
            raise
        return sandbox

    async def collect(self, sandbox: Sandbox, instance: str) -> str:
        """What changed, but for the hidden tests, as a patch in base64: its bytes need be no text."""
        patch = f"git add -A && git diff --cached --binary HEAD -- . ':!{_HIDDEN}' ':!{_RUNNER}' > {_PATCH}"
        result = await sandbox.run(shell(f"{{ {patch} && base64 {_PATCH}; }} 2>/dev/null"))
        return result.output if result.exit_code == 0 and result.outcome is CommandOutcome.EXITED else ""

    async def passes(self, instance: str, submission: str) -> bool:
        chosen = self._instances[instance]
        sandbox = await self._fresh(instance)
        try:
            applied = await sandbox.run(shell(_APPLY, submission))
            if applied.exit_code != 0:
                return False
            if chosen.test_patch:
                prepared = await sandbox.run(shell("git apply --whitespace=nowarn -", chosen.test_patch))
                if prepared.exit_code != 0:
                    return False  # the changes stand where the hidden tests must go
            result = await sandbox.run(shell(pytest_command(chosen), wall_s=self._settings.test_wall_s))
        finally:
            await sandbox.close()
        if result.outcome is not CommandOutcome.EXITED:
            return False
        return result.exit_code == 0 if chosen.expected is None else read_outcomes(result.output) == chosen.expected

    async def _fresh(self, instance: str) -> Sandbox:
        sandbox = await self._host.open_image(image_of(self._instances[instance], self._settings.image))
        return _InFolder(sandbox, self._settings.repo_folder)


async def _hide_tests(sandbox: Sandbox) -> None:
    removed = await sandbox.run(shell(f"rm -rf /{_HIDDEN} {_HIDDEN} {_RUNNER}"))
    if removed.exit_code != 0:
        raise SandboxLostError(
            f"the hidden tests cannot be removed from the policy's sandbox: {removed.output[-300:]} {removed.note}"
        )


def image_of(instance: ImageInstance, template: str | None) -> str:
    """Raises `SandboxLostError` when neither the instance nor the configuration names an image."""
    if instance.image:
        return instance.image
    if template is None:
        raise SandboxLostError(
            f"instance {instance.key} names no image; set workload.image, for example to the SWE-bench images'"
        )
    return template.replace("{instance_id}", instance.key.replace("__", "_1776_").lower())


def pytest_command(instance: ImageInstance) -> str:
    """The named tests by pytest in SWE-bench's environment, or R2E-Gym's own script."""
    if not instance.tests:
        return f"[ -e {_HIDDEN} ] || ln -s /{_HIDDEN} {_HIDDEN}; bash {_RUNNER}"
    names = " ".join(shlex.quote(name) for name in instance.tests)
    return f"{_ACTIVATE}; python -m pytest -q -p no:cacheprovider {names}"


def shell(script: str, stdin: str = "", *, wall_s: float | None = None) -> SandboxCommand:
    return SandboxCommand(argv=("/bin/sh", "-c", script), input=stdin, wall_s=wall_s)


class _InFolder:
    """Runs every command of a container in its repository."""

    def __init__(self, sandbox: Sandbox, folder: str) -> None:
        self._sandbox = sandbox
        self._folder = folder

    async def run(self, command: SandboxCommand) -> Any:
        argv = ("/bin/sh", "-c", f'cd {shlex.quote(self._folder)} && exec "$@"', "sh", *command.argv)
        moved = SandboxCommand(argv=argv, input=command.input, environment=command.environment, wall_s=command.wall_s)
        return await self._sandbox.run(moved)

    async def close(self) -> None:
        await self._sandbox.close()
