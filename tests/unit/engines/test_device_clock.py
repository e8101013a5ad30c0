"""Times of device work wait for the device, and cost nothing where there is none."""

import ast
import time
from pathlib import Path

import pytest
import torch

from libra_core.engines import device_clock

ENGINES = Path(device_clock.__file__).parent
HOST_ONLY = {
    "calibration": "CPU seconds of processes, and requests whose tokens have arrived",
    "warm_start": "the CPU alone",
    "vllm/engine.py": "exchanges with a process that answers when its device is done",
    "vllm/stats.py": "steps whose tokens have arrived",
    "vllm/turn.py": "tokens that have arrived",
    "megatron/hybrid.py": "deadlines",
    "megatron/accumulation.py": "the unix time of a step's begin",
    "device_clock.py": "the clock itself",
}


class Device:
    """Work that was handed over and is not done yet."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.waits: list[str] = []
        monkeypatch.setattr(torch.cuda, "synchronize", self.synchronize)

    def synchronize(self, device: torch.device | str | None = None) -> None:
        self.waits.append(str(device))
        time.sleep(0.05)


def test_a_time_on_cuda_holds_the_work_that_was_only_handed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    device = Device(monkeypatch)
    started_s = time.monotonic()
    assert device_clock.device_time_s(torch.device("cuda", 0)) - started_s >= 0.05
    assert device.waits == ["cuda:0"]


def test_a_time_on_the_cpu_waits_for_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    device = Device(monkeypatch)
    device_clock.device_time_s("cpu")
    assert device.waits == []


def test_engines_take_no_time_of_device_work_by_the_hosts_clock() -> None:
    clocks = {"perf_counter", "monotonic", "time", "process_time"}
    users = {
        str(path.relative_to(ENGINES))
        for path in ENGINES.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Call)
        and (
            (isinstance(node.func, ast.Name) and node.func.id in clocks)
            or (isinstance(node.func, ast.Attribute) and node.func.attr in clocks and ast.unparse(node.func.value) == "time")
        )
    }
    unexplained = {name for name in users if not any(name.startswith(known) for known in HOST_ONLY)}
    assert unexplained == set(), "use device_clock, or say in HOST_ONLY why the host's clock is right"
