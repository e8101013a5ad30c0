"""Repairing a repository with real sandboxes: what earns the reward, and what only tries to."""

import asyncio
import json
import random
import uuid
from itertools import cycle
from pathlib import Path

import pytest

from libra_core.config.sandbox import SandboxConfig
from libra_core.config.workload import R2EGymConfig
from libra_core.engines.warm_start.lessons import RepairLessons, encoded
from libra_core.errors import ResourceError
from libra_core.types.trajectory import Prompt, ToolReturn, ToolStatus
from libra_core.workloads.chat import Chat
from libra_core.workloads.check.agents import Babbler, ScriptedRepairer, tool_call
from libra_core.workloads.check.codec import byte_codec
from libra_core.workloads.check.runner import Checker, CheckPlan, CheckReport
from libra_core.workloads.r2e_gym.environment import R2EGymEnvironment
from libra_core.workloads.r2e_gym.repositories import MutatedPackages
from libra_core.workloads.r2e_gym.source import IssueSource
from libra_core.workloads.r2e_gym.tasks import PACKAGES_FOLDER, HiddenTest, RepairTask
from libra_core.workloads.r2e_gym.workspace import TaskFiles
from libra_core.workloads.sandbox.host import SandboxHost, limits_of
from libra_core.workloads.sandbox.local import find_isolation
from support.sandboxes import marked_processes

SOURCE = '''def double(value):
    """Twice.

    >>> double(4)
    8
    >>> double("a")
    'aa'
    >>> double(None)
    Traceback (most recent call last):
    TypeError: no value
    """
    if value is None:
        raise TypeError("no value")
    return value + value


def half(value):
    """
    >>> half(4)
    2.0
    """
    return value / 2
'''
DOUBLE = HiddenTest(name="toy.core.double", module="toy.core", docstring=">>> double(4)\n8\n>>> double('a')\n'aa'\n", names={})
HALF = HiddenTest(name="toy.core.half", module="toy.core", docstring=">>> half(4)\n2.0\n", names={})
LINE = SOURCE.split("\n").index("    return value + value") + 1
TASK = RepairTask(
    key="toy.core.double",
    package="toy",
    path="toy/core.py",
    line=LINE,
    before="    return value + value",
    after="    return value - value",
    issue="double(4) gives 0",
    tests=(DOUBLE, HALF),
)
SANDBOX = SandboxConfig(wall_s=60.0, cpu_s=30.0, open_at_once=16, commands_at_once=4)
CODEC = byte_codec()
SUBMIT = '<tool_call>{"name": "submit", "arguments": {}}</tool_call><|im_end|>'


class Reciting:
    """Says prepared turns, one after the other."""

    def __init__(self, *turns: str) -> None:
        self._turns = turns

    def say(self, prompt: Prompt, answers: list[str] | tuple[str, ...]) -> str:  # type: ignore[override]
        return self._turns[min(len(answers), len(self._turns) - 1)]


def bash(command: str) -> str:
    return f"<tool_call>{json.dumps({'name': 'bash', 'arguments': {'command': command}})}</tool_call><|im_end|>"


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    try:
        asyncio.run(find_isolation(limits_of(SANDBOX)))
    except ResourceError as error:
        pytest.skip(f"this host cannot isolate commands: {error}")
    folder = tmp_path_factory.mktemp("prepared")
    package = folder / PACKAGES_FOLDER / "toy" / "toy"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("")
    (package / "core.py").write_text(SOURCE)
    return folder


def play(prepared: Path, *turns: str, episodes: int = 1, at_once: int = 1) -> CheckReport:
    host = SandboxHost(SANDBOX)
    repositories = MutatedPackages(prepared, [TASK], host, test_wall_s=30.0)
    environment = R2EGymEnvironment(CODEC, R2EGymConfig(), repositories)
    prompt = IssueSource(Chat(CODEC), [TASK], [], seed=0).prompt(TASK)
    plan = CheckPlan(
        episodes=episodes,
        at_once=at_once,
        max_turns=6,
        tool_deadline_s=60.0,
        score_deadline_s=120.0,
        queue_deadline_s=120.0,
        threads=8,
    )
    checker = Checker(environment, CODEC, plan)

    def agent(number: int) -> Reciting | ScriptedRepairer | Babbler:
        if turns:
            return Reciting(*turns)
        return ScriptedRepairer({TASK.key: TASK}, TaskFiles(prepared))

    return asyncio.run(checker.run(cycle([prompt]), agent, lambda done: None))


def test_the_right_repair_earns_the_reward_many_times_at_once(prepared: Path) -> None:
    report = play(prepared, episodes=16, at_once=16)
    assert (report.success, report.lost, report.losses) == (1.0, 0, ())
    assert report.tool_calls == {"ok": 48}
    assert report.most_at_once > 1


@pytest.mark.parametrize(
    "command",
    [
        "true",
        "rm -r toy",
        "echo 'def double(value): return 8 if value == 4 else None' > toy/core.py",
        "echo 'import os; os._exit(0)' > toy/__init__.py",
        "printf 'import doctest, sys\\ndoctest.OutputChecker.check_output = lambda *a: True\\n' > toy/__init__.py",
        "printf '{\"failed\": []}' ; echo 'print(\"[[]]\"); raise SystemExit(0)' > toy/__init__.py",
        "sed -i 's/value - value/value + value/' toy/core.py; sed -i 's|value / 2|value|' toy/core.py",
        "sed -i 's/value - value/value + value/' toy/core.py; cp toy/core.py /tmp/x; ln -sf /tmp/x toy/core.py",
        "head -c 3000000 /dev/zero | tr '\\0' x > big; sed -i 's/value - value/value + value/' toy/core.py",
        "echo 'while True: pass' > toy/core.py",
        "rm toy/core.py; mkdir -p toy/core.py/x; echo 1 > toy/core.py/x/y",
        "rm -r toy; echo text > toy",
        "python3 -c \"import os\nfor _ in range(1500): os.mkdir('d'); os.chdir('d')\"",
        "python3 -c \"import os\nfor _ in range(19): os.mkdir('d' * 200); os.chdir('d' * 200)\nopen('f', 'w')\"",
    ],
)
def test_nothing_but_the_repair_earns_it(prepared: Path, command: str) -> None:
    report = play(prepared, bash(command), SUBMIT)
    assert (report.success, report.lost) == (0.0, 0)


def test_lessons_hold_what_the_tools_really_answer(prepared: Path) -> None:
    lesson = RepairLessons([TASK], TaskFiles(prepared)).draw(random.Random(0))
    repositories = MutatedPackages(prepared, [TASK], SandboxHost(SANDBOX), test_wall_s=30.0)
    environment = R2EGymEnvironment(CODEC, R2EGymConfig(), repositories)
    prompt = IssueSource(Chat(CODEC), [TASK], [], seed=0).prompt(TASK)

    async def answers() -> list[str]:
        episode = await environment.reset(prompt)
        calls = [environment.parse_call(CODEC.encode(f"{said}<|im_end|>")) for said, _ in lesson.turns]
        said = [CODEC.decode((await episode.step(call)).token_ids) for call in calls if call is not None]
        await episode.close()
        return said

    shown = [CODEC.decode(Chat(CODEC).tool_turn(CODEC.encode_plain(answered))) for _, answered in lesson.turns if answered]
    assert asyncio.run(answers()) == shown
    demonstration = encoded(lesson, CODEC, 1024)
    assert demonstration.token_ids[: len(prompt.token_ids)] == prompt.token_ids


CONNECT = "import socket; s = socket.socket(); s.settimeout(3); s.connect(('1.1.1.1', 53))"
LINK = bash("mkdir out; ln -s OUTSIDE out/link")


def asked(tool: str, **arguments: str) -> str:
    return f"{tool_call(tool, **arguments)}<|im_end|>"


@pytest.mark.parametrize(
    ("turns", "status", "says"),
    [
        ([bash("bomb() { bomb | bomb & }; bomb; sleep 60; : MARK")], ToolStatus.TIMEOUT, "deadline passed"),
        ([bash("yes MARK")], ToolStatus.ERROR, "too much output"),
        ([asked("python", code="x = bytearray(10 * 2**30)")], ToolStatus.ERROR, "MemoryError"),
        ([bash("rm -rf --no-preserve-root / 2>/dev/null; ls /bin/sh")], ToolStatus.OK, "/bin/sh\n[exit code 0]"),
        ([bash("cat OUTSIDE")], ToolStatus.ERROR, "No such file"),
        ([asked("view", path="OUTSIDE")], ToolStatus.ERROR, "No such file"),
        ([asked("python", code=CONNECT)], ToolStatus.ERROR, "unreachable"),
        ([bash("sh -c 'sleep 300; : MARK'")], ToolStatus.TIMEOUT, "deadline passed"),
        ([bash("(setsid sh -c 'sleep 300; : MARK' &); echo left")], ToolStatus.OK, "left\n[exit code 0]"),
        ([LINK, asked("view", path="out/link")], ToolStatus.ERROR, "No such file"),
        ([LINK, asked("edit", path="out/link", old="kept", new="")], ToolStatus.ERROR, "No such file"),
        ([asked("edit", path="/usr/taken", old="", new="x")], ToolStatus.ERROR, "Read-only file system"),
    ],
)
def test_every_attack_is_contained_and_answered(
    prepared: Path, tmp_path: Path, turns: list[str], status: ToolStatus, says: str
) -> None:
    outside, mark = tmp_path / "outside", uuid.uuid4().hex
    outside.write_text("kept")
    wall_s = 2.0 if status is ToolStatus.TIMEOUT else 60.0
    limits = SandboxConfig(wall_s=wall_s, processes=24, memory_mib=256, output_kib=16, file_mib=8, disk_mib=16)
    repositories = MutatedPackages(prepared, [TASK], SandboxHost(limits), test_wall_s=30.0)
    environment = R2EGymEnvironment(CODEC, R2EGymConfig(), repositories)

    async def last_answer() -> ToolReturn:
        episode = await environment.reset(IssueSource(Chat(CODEC), [TASK], [], seed=0).prompt(TASK))
        answers: list[ToolReturn] = []
        for turn in turns:
            call = environment.parse_call(CODEC.encode(turn.replace("OUTSIDE", str(outside)).replace("MARK", mark)))
            assert call is not None
            answers.append(await episode.step(call))
        await episode.close()
        return answers[-1]

    last = asyncio.run(last_answer())
    assert last.status is status
    assert says in CODEC.decode(last.token_ids)
    assert outside.read_text() == "kept"
    assert marked_processes(mark) == []


def test_a_repair_without_submission_earns_nothing(prepared: Path) -> None:
    report = play(prepared, bash("sed -i 's/value - value/value + value/' toy/core.py"))
    assert (report.success, report.lost) == (0.0, 0)
    assert play(prepared, bash("sed -i 's/value - value/value + value/' toy/core.py"), SUBMIT).success == 1.0


def test_exit_codes_and_usage_reach_the_policy(prepared: Path) -> None:
    turns = (
        bash("echo 0 errors, all tests passed"),
        bash("echo all tests passed; exit 1"),
        "I think aloud.<|im_end|>",
        '<tool_call>{"name": "edit", "arguments": {"path": "toy/core.py", "old": "absent", "new": ""}}</tool_call><|im_end|>',
        '<tool_call>{"name": "launch", "arguments": {}}</tool_call><|im_end|>',
        SUBMIT,
    )
    assert play(prepared, *turns).tool_calls == {"error": 2, "malformed": 2, "ok": 1}
