"""Training worlds on this machine's CPUs: a few processes, spawned once, that form one world after another."""

import socket
import traceback
from collections.abc import Callable
from dataclasses import dataclass, replace
from multiprocessing import get_context
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from libra_core.config.training import LayoutConfig, TrainingConfig
from libra_core.engines.megatron.spec import TrainerSpec
from libra_core.errors import LibraError, NumericsError

_ANSWER_S = 150.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A module-level function called as `function(spec, *arguments)` on every rank of a world of its own."""

    function: Callable[..., Any]
    spec: TrainerSpec
    arguments: tuple[Any, ...] = ()


def spec_of(folder: Path, *, training: TrainingConfig, temperature: float = 1.0) -> TrainerSpec:
    """Rank 0's specification of a CPU world; the pool fills in the ranks, and a free port for 0."""
    return TrainerSpec(
        model_path=str(folder),
        dtype="float32",
        device="cpu",
        rank=0,
        world_size=training.layout.world_size,
        master_addr="127.0.0.1",
        master_port=0,
        seed=0,
        training=training,
        temperature=temperature,
    )


def layout(tp: int = 1, pp: int = 1, dp: int = 1, **options: bool) -> LayoutConfig:
    return LayoutConfig(tp=tp, pp=pp, dp=dp, **options)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class WorldPool:
    """Owns `size` processes. Importing torch and Megatron costs seconds, so they live as long as the pool.

    A rank that raises leaves its peers in a collective, so a failed job ends the whole pool.
    """

    def __init__(self, size: int, *, answer_s: float = _ANSWER_S) -> None:
        """`answer_s`: how long a rank may take for one job."""
        self._size = size
        self._answer_s = answer_s
        self._members: list[tuple[BaseProcess, Connection]] = []

    def __enter__(self) -> "WorldPool":
        context = get_context("spawn")
        for _ in range(self._size):
            ours, theirs = context.Pipe()
            process = context.Process(target=_serve, args=(theirs,), daemon=True)
            process.start()
            theirs.close()
            self._members.append((process, ours))
        return self

    def __exit__(self, *_error: object) -> None:
        for process, connection in self._members:
            connection.close()
            process.join(5.0)
            if process.is_alive():
                process.kill()
                process.join(5.0)
        self._members = []

    def run(self, function: Callable[..., Any], spec: TrainerSpec, *arguments: Any) -> list[Any]:
        """Answers of all ranks, in rank order; raises `NumericsError` with the first failed rank's traceback."""
        assert self._members, "the pool is closed, or an earlier job failed"
        located = replace(spec, master_port=spec.master_port or free_port())
        workers = self._members[: spec.world_size]
        assert len(workers) == spec.world_size, f"a pool of {self._size} cannot run a world of {spec.world_size}"
        for rank, (_, connection) in enumerate(workers):
            connection.send(Job(function=function, spec=replace(located, rank=rank), arguments=arguments))
        return [self._answer(rank, connection) for rank, (_, connection) in enumerate(workers)]

    def _answer(self, rank: int, connection: Connection) -> Any:
        try:
            late = (False, f"no answer within {self._answer_s:.0f} s")
            ok, value = connection.recv() if connection.poll(self._answer_s) else late  # unbounded: `poll` has waited
        except EOFError:
            ok, value = False, "its process died"
        if not ok:
            self.__exit__()
            raise NumericsError(f"trainer rank {rank} failed: {value}")
        return value


def play(spec: TrainerSpec, *calls: tuple[Any, ...]) -> list[Any]:
    """On every rank: start a trainer, make the calls `(method, *arguments)`, close it; one answer per call.

    A `LibraError` is an answer too: it is raised on all ranks alike, so the pool goes on. A failed start is the only answer.
    """
    from libra_core.engines.megatron.trainer import MegatronTrainer  # heavy, and it patches torch: only in these processes

    try:
        trainer = MegatronTrainer(spec)
    except LibraError as error:
        return [error]
    try:
        return [_portable(_call(trainer, *call)) for call in calls]
    finally:
        trainer.close()


def _call(trainer: Any, name: str, *arguments: Any) -> Any:
    attribute = getattr(trainer, name)
    try:
        return attribute(*arguments) if callable(attribute) else attribute
    except LibraError as error:
        return error


def _portable(answer: Any) -> Any:
    """Tensors as numpy arrays: torch would send handles to the memory of a process that may be gone."""
    if isinstance(answer, dict):
        return {key: value.numpy() if hasattr(value, "numpy") else value for key, value in answer.items()}
    return answer


def _serve(connection: Connection) -> None:
    """Run jobs until the pool closes its end. Consumes jobs from the pipe, waits for nothing else."""
    import torch

    torch.set_num_threads(1)
    while True:
        try:
            job = connection.recv()  # unbounded: the pool closes its end
        except EOFError:
            return
        connection.send(outcome(job))


def outcome(job: Job) -> tuple[bool, Any]:
    """Whether it worked, and its answer or its traceback."""
    try:
        return True, job.function(job.spec, *job.arguments)
    except Exception:  # crosses a process border as text
        return False, traceback.format_exc(limit=-8)
