"""Feeds noise to the parsers and environments for a given time: counts what broke, what got out, and how memory grew.

Environments are built once, as in a run. Run: `python tests/benchmarks/fuzz_workloads.py --seconds 600 --workloads
search_r1,dapo_math,r2e_gym`. Prints one JSON object: `lost` must be 0, `host_unharmed` true, what is left behind 0, and `rss_mib`
(this process and its graders, after each of some rounds) level off.
"""

import argparse
import asyncio
import json
import os
import platform
import random
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from libra_core.config.loading import validate_config
from libra_core.types.trajectory import Prompt
from libra_core.workloads.build import Workload, build_workload
from libra_core.workloads.calls import call_arguments, parse_tool_call
from libra_core.workloads.check.agents import Babbler
from libra_core.workloads.check.codec import byte_codec, write_byte_model
from libra_core.workloads.check.runner import Checker, CheckPlan, CheckReport
from libra_core.workloads.dapo_math.answers import extract_answer
from libra_core.workloads.r2e_gym.tools import command_of, own_terms
from libra_core.workloads.search_r1.tag_environment import last_answer, parse_search

_ROUND_EPISODES = 24
_ROUND_TEXTS = 2000
_SHOWN_ROUNDS = 12
_CODEC = byte_codec()
_PLAN = CheckPlan(
    episodes=_ROUND_EPISODES,
    at_once=8,
    max_turns=4,
    tool_deadline_s=60.0,
    score_deadline_s=600.0,
    queue_deadline_s=600.0,
    threads=8,
)
_ESCAPES = (
    "echo out > {witness}",
    "cat {witness}",
    "ln -s {witness} l; echo out > l",
    "python3 -c \"open('{witness}', 'w').write('out')\"",
    "cd /proc/1/root && echo out > .{witness}",
    "mkdir -p m; mount --bind / m; echo out > m{witness}",
    "(setsid sh -c 'sleep 300; : {witness}' &)",
    "env -i setsid sh -c 'while :; do : {witness}; done' &",
    "bomb() {{ bomb | bomb & }}; bomb; sleep 60; : {witness}",
    "yes {witness}",
    "python3 -c 'x = bytearray(10 * 2**30)'",
    "rm -rf --no-preserve-root / ; : {witness}",
    "ln -s / root; mkdir -p deep; chmod 000 deep; echo x > root/tmp/{witness}",
)
_FRAGMENTS = (
    *("<tool_call>", "</tool_call>", "<function=", ">", "</function>", "<parameter=", "</parameter>", '{"name":', '"arguments":'),
    *('"bash"', '"file_editor"', "file_editor", "command", "view_range", "[1,", '"command":', "{", ","),
    *("}", "]", "\\boxed{", "}", "Answer:", "####", "<search>", "</search>", "<answer>", "</answer>", "\\frac", "%", "$", "\n"),
    *("\0", "é", "𝟘"),
)


class Escapist(Babbler):
    """Babbles, and now and then tries to get out."""

    def __init__(self, rng: random.Random, witness: Path) -> None:
        super().__init__(rng)
        self._draw = rng
        self._witness = witness

    def say(self, prompt: Prompt, answers: Any) -> str:
        if self._draw.random() < 0.6:
            return super().say(prompt, answers)
        command = self._draw.choice(_ESCAPES).format(witness=self._witness)
        arguments = {"command": command, "code": f"import os\nos.system({command!r})"}
        call = {"name": self._draw.choice(("bash", "python")), "arguments": arguments}
        return f"<tool_call>{json.dumps(call)}</tool_call><|im_end|>"


def parse_noise(rng: random.Random) -> None:
    """Raises when a parser does."""
    text = "".join(
        rng.choice(_FRAGMENTS) if rng.random() < 0.7 else chr(rng.randrange(0x110000)) for _ in range(rng.randrange(40))
    )
    text = text.encode("utf-8", "replace").decode()
    call = parse_tool_call(text)
    if call is not None and not call.malformed:
        call_arguments(call)
        command_of(own_terms(call))
    parse_search(text)
    last_answer(text)
    extract_answer(text)


def built(workload: str) -> Workload:
    settings: dict[str, Any] = {"kind": workload}
    if workload == "dapo_math":
        settings["python_tool"] = True
    if workload != "search_r1":
        settings["sandbox"] = {"wall_s": 5.0, "processes": 16, "memory_mib": 128, "disk_mib": 32, "commands_at_once": 2}
    config = validate_config({"workload": settings})
    with tempfile.TemporaryDirectory() as folder:
        write_byte_model(Path(folder))
        return build_workload(config, Path(folder), any_length=True)


@dataclass(slots=True)
class Fuzz:
    """One event loop owns it, as an actor's loop owns its environments."""

    workloads: list[Workload]
    witness: Path
    seconds: float

    async def run(self) -> dict[str, Any]:
        """Rounds until the time is up."""
        reports: list[CheckReport] = []
        memory: list[float] = []
        started_s = time.monotonic()
        while time.monotonic() - started_s < self.seconds:
            rng = random.Random(len(memory))
            for _ in range(_ROUND_TEXTS):
                parse_noise(rng)
            reports += [await self._round(workload, len(memory)) for workload in self.workloads]
            memory.append(memory_mib())
        return {
            "texts": len(memory) * _ROUND_TEXTS,
            "episodes": sum(report.episodes for report in reports),
            "tool_calls": sum(sum(report.tool_calls.values()) for report in reports),
            "rewards": sum(round(report.success * report.episodes) for report in reports),
            "lost": sum(report.lost for report in reports),
            "losses": [loss for report in reports for loss in report.losses][-5:],
            "rounds": len(memory),
            "rss_mib": memory[:: max(1, len(memory) // _SHOWN_ROUNDS)],
        }

    async def _round(self, workload: Workload, number: int) -> CheckReport:
        start = number * _ROUND_EPISODES
        prompts: Iterator[Prompt] = workload.prompts.training(start)
        checker = Checker(workload.environment, _CODEC, _PLAN)
        return await checker.run(prompts, lambda n: Escapist(random.Random(f"{start + n}"), self.witness), lambda done: None)


def memory_mib() -> float:
    own = psutil.Process()
    return round(sum(each.memory_info().rss for each in (own, *own.children())) / 2**20, 1)


def left_running(mark: str) -> int:
    return sum(mark in " ".join(process.info["cmdline"] or ()) for process in psutil.process_iter(["cmdline"]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=600.0)
    parser.add_argument("--workloads", default="search_r1,dapo_math,r2e_gym")
    options = parser.parse_args()
    workloads = [built(name) for name in options.workloads.split(",")]
    started_s = time.monotonic()
    with tempfile.TemporaryDirectory() as outside, tempfile.TemporaryDirectory() as inside:
        tempfile.tempdir = inside  # sandboxes are made there
        witness = Path(outside) / "witness"
        witness.write_text("unharmed", encoding="utf-8")
        facts = asyncio.run(Fuzz(workloads, witness, options.seconds).run())
        facts["host_unharmed"] = witness.read_text(encoding="utf-8") == "unharmed" and os.listdir(outside) == ["witness"]
        facts |= {"processes_left": left_running(str(witness)), "folders_left": len(os.listdir(inside))}
    facts["seconds"] = time.monotonic() - started_s
    print(json.dumps({**facts, "machine": f"{platform.machine()}, {os.cpu_count()} CPUs"}))


if __name__ == "__main__":
    main()
