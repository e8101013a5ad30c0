"""Feeds noise to the parsers and environments for a given time: counts what broke, what got out, and how memory grew.

Run: `python tests/benchmarks/fuzz_workloads.py --seconds 600 --workloads search_r1,dapo_math,r2e_gym`. Prints one JSON object.
"""

import argparse
import asyncio
import itertools
import json
import os
import platform
import random
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil

from libra_core.config.loading import validate_config
from libra_core.types.trajectory import Prompt
from libra_core.workloads.build import build_workload
from libra_core.workloads.calls import call_arguments, parse_tool_call
from libra_core.workloads.check.agents import Babbler
from libra_core.workloads.check.codec import byte_codec, write_byte_model
from libra_core.workloads.check.runner import Checker, CheckPlan, CheckReport
from libra_core.workloads.dapo_math.answers import extract_answer
from libra_core.workloads.search_r1.tag_environment import last_answer, parse_search

_ROUND_EPISODES = 24
_ROUND_TEXTS = 2000
_ESCAPES = (
    "echo out > {witness}",
    "cat {witness}",
    "ln -s {witness} l; echo out > l",
    "python3 -c \"open('{witness}', 'w').write('out')\"",
    "cd /proc/1/root && echo out > .{witness}",
    "mkdir -p m; mount --bind / m; echo out > m{witness}",
    "(setsid sleep 300 &)",
    "nohup sh -c 'while :; do :; done' &",
)
_FRAGMENTS = (
    *("<tool_call>", "</tool_call>", "<function=", ">", "</function>", "<parameter=", "</parameter>", '{"name":', '"arguments":'),
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
    parse_search(text)
    last_answer(text)
    extract_answer(text)


async def play(workload: str, seed: int, witness: Path, episodes: int) -> CheckReport:
    settings: dict[str, Any] = {"kind": workload}
    if workload == "dapo_math":
        settings["python_tool"] = True
    if workload != "search_r1":
        settings["sandbox"] = {"wall_s": 5.0, "processes": 16, "memory_mib": 128, "disk_mib": 32, "commands_at_once": 2}
    config = validate_config({"workload": settings, "seed": seed})
    with tempfile.TemporaryDirectory() as folder:
        write_byte_model(Path(folder))
        built = await asyncio.to_thread(build_workload, config, Path(folder))
    plan = CheckPlan(
        episodes=episodes, at_once=8, max_turns=4, tool_deadline_s=60.0, score_deadline_s=600.0, queue_deadline_s=600.0
    )
    checker = Checker(built.environment, byte_codec(), plan)
    prompts: Iterator[Prompt] = itertools.islice(built.prompts.training(0), episodes)
    return await checker.run(prompts, lambda number: Escapist(random.Random(f"{seed}/{number}"), witness), lambda done: None)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=600.0)
    parser.add_argument("--workloads", default="search_r1,dapo_math,r2e_gym")
    options = parser.parse_args()
    process = psutil.Process()
    started_s = time.monotonic()
    facts: dict[str, Any] = {"texts": 0, "episodes": 0, "tool_calls": 0, "rewards": 0, "lost": 0, "losses": [], "rss_mib": []}
    with tempfile.TemporaryDirectory() as folder:
        witness = Path(folder) / "witness"
        witness.write_text("unharmed", encoding="utf-8")
        before = len(psutil.pids())
        for number in itertools.count():
            if time.monotonic() - started_s > options.seconds:
                break
            rng = random.Random(number)
            for _ in range(_ROUND_TEXTS):
                parse_noise(rng)
            facts["texts"] += _ROUND_TEXTS
            for workload in options.workloads.split(","):
                report = asyncio.run(play(workload, number, witness, _ROUND_EPISODES))
                facts["episodes"] += report.episodes
                facts["tool_calls"] += sum(report.tool_calls.values())
                facts["rewards"] += round(report.success * report.episodes)
                facts["lost"] += report.lost
                facts["losses"] = [*facts["losses"], *report.losses][-5:]
            facts["rss_mib"].append(round(process.memory_info().rss / 2**20, 1))
        facts["host_unharmed"] = witness.read_text(encoding="utf-8") == "unharmed"
    facts["rss_mib"] = facts["rss_mib"][:: max(1, len(facts["rss_mib"]) // 12)]
    facts["children_left"] = len(process.children(recursive=True))
    facts |= {"processes_on_host": [before, len(psutil.pids())], "seconds": time.monotonic() - started_s}
    print(json.dumps({**facts, "machine": f"{platform.machine()}, {os.cpu_count()} CPUs"}))


if __name__ == "__main__":
    main()
