"""Elastic runs as real processes: a core world, hybrid replicas, and the same steps computed in one replica.

Processes are forked from a server that has imported Megatron once, so that a test does not pay for it per process.
"""

import multiprocessing
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import numpy as np

from libra_core.config.training import LayoutConfig, LossConfig, OptimizerConfig, TrainingConfig
from libra_core.elastic.spec import ElasticSpec
from libra_core.engines.megatron.spec import TrainerSpec
from libra_core.engines.verification.worlds import free_port, spec_of
from support.elastic_scripts import SECRET, CoreScript, HybridScript, StepRecord, core_rank, hybrid_rank, reference_rank
from support.sample_book import SampleBook

_ANSWER_S = 250.0
_HANGING = frozenset({"stop", "hang", "half then hang"})


@dataclass(slots=True, kw_only=True)
class Outcome:
    steps: list[StepRecord]
    book: SampleBook
    weights: dict[str, np.ndarray]
    hybrids: list[list[Any]]
    """Answers of each replica's ranks; None where the process died."""
    closed: list[dict[int, str | None]]
    """By core rank: why each slot's newest link closed."""
    waits: list[list[float]]
    """By core rank, seconds waited in each step."""
    refused: list[list[str]] = field(default_factory=list)

    @property
    def members(self) -> list[int]:
        return [len(step.counted) for step in self.steps]


class Processes:
    """Everything that a test started; `__exit__` ends it by pid."""

    def __init__(self) -> None:
        self._context = multiprocessing.get_context("forkserver")
        self._context.set_forkserver_preload(["libra_core.engines.megatron.hybrid"])
        self._started: list[BaseProcess] = []

    def __enter__(self) -> "Processes":
        return self

    def __exit__(self, *_error: object) -> None:
        for process in self._started:
            if process.is_alive():
                process.kill()
            process.join()

    def start(self, function: Callable[..., Any], spec: TrainerSpec, *arguments: Any) -> list[Connection]:
        """One process per rank of a world of its own."""
        located = replace(spec, master_port=free_port())
        connections: list[Connection] = []
        for rank in range(spec.world_size):
            ours, theirs = self._context.Pipe()
            process = self._context.Process(target=_serve, args=(theirs, function, replace(located, rank=rank), arguments))
            process.start()
            theirs.close()
            self._started.append(process)
            connections.append(ours)
        return connections


def _serve(connection: Connection, function: Callable[..., Any], spec: TrainerSpec, arguments: tuple[Any, ...]) -> None:
    import traceback

    import torch

    torch.set_num_threads(1)
    try:
        connection.send((True, function(spec, *arguments)))
    except Exception:  # crosses a process border as text
        connection.send((False, traceback.format_exc(limit=-6)))


def answers(connections: Sequence[Connection], *, may_die: bool = False, seconds: float = _ANSWER_S) -> list[Any]:
    """Of all ranks. Where one may die: None of it, and what the others then raised or left unsaid."""
    found: list[Any] = []
    for rank, connection in enumerate(connections):
        try:
            ok, value = connection.recv() if connection.poll(seconds) else (False, f"no answer within {seconds:.0f} s")
        except EOFError:
            ok, value = may_die, None
        if not ok and not may_die:
            raise AssertionError(f"rank {rank}: {value or 'died'}")
        found.append(value)
    return found


def run_elastic(
    core: TrainerSpec, folder: Path, hybrids: Sequence[HybridScript] = (), script: CoreScript | None = None
) -> Outcome:
    """A core run with these replicas; `core.elastic` says how the side channel is set up."""
    replica = one_replica(core)
    script, hybrids = script or CoreScript(), tuple(hybrids)
    with Processes() as processes:
        ranks = processes.start(core_rank, core, str(folder), script, hybrids)
        worlds = [processes.start(hybrid_rank, replica, str(folder), hybrid, core) for hybrid in hybrids]
        core_answers = answers(ranks)
        hangs = any(fault.kind in _HANGING for hybrid in hybrids for fault in hybrid.faults)
        replicas = [
            answers(world, may_die=_ends_early(hybrid), seconds=1.0 if hangs else _ANSWER_S)
            for hybrid, world in zip(hybrids, worlds, strict=True)
        ]
    first = core_answers[0]
    return Outcome(
        steps=first["records"],
        book=first["book"],
        weights=first["weights"],
        hybrids=replicas,
        closed=[answer["closed"] for answer in core_answers],
        waits=[answer["waits"] for answer in core_answers],
        refused=[answer["refused"] for answer in core_answers],
    )


def _ends_early(hybrid: HybridScript) -> bool:
    return any(fault.kind in _HANGING or fault.kind.endswith("kill") for fault in hybrid.faults)


def reference(core: TrainerSpec, outcome: Outcome) -> Mapping[str, Any]:
    """The run again, in one replica of the core's tensor- and pipeline-parallel shape and without any exchange."""
    with Processes() as processes:
        return answers(processes.start(reference_rank, one_replica(core), core.training.layout.dp, outcome.steps))[0]


def one_replica(core: TrainerSpec) -> TrainerSpec:
    layout = core.training.layout
    alone = layout.model_copy(update={"dp": 1, "distributed_optimizer": False})
    training = core.training.model_copy(update={"layout": alone})
    return replace(core, elastic=None, world_size=alone.world_size, training=training)


def core_spec(model: Path, shape: LayoutConfig, *, slots: int = 1, loss: LossConfig | None = None, **elastic: Any) -> TrainerSpec:
    """A core world on the model folder; `elastic` changes fields of its side channel."""
    training = TrainingConfig(
        layout=shape,
        loss=loss or LossConfig(entropy_coefficient=0.01),
        micro_batch_tokens=64,
        collective_timeout_s=180.0,
        optimizer=OptimizerConfig(warmup_steps=0, weight_decay=0.01),
    )
    channel = ElasticSpec(**({"secret": SECRET, "slots": slots, "contribution_s": 120.0, "frame_s": 120.0} | elastic))
    return replace(spec_of(model, training=training), elastic=channel)


def difference(first: Outcome | dict[str, np.ndarray], second: dict[str, np.ndarray]) -> float:
    weights = first.weights if isinstance(first, Outcome) else first
    return max(float(np.abs(weights[name] - second[name]).max()) for name in weights)


def trained_once(outcome: Outcome) -> bool:
    """Every sample of every step is trained or waits, and in one gradient only."""
    gradients = [
        number
        for step in outcome.steps
        for replica, samples in enumerate(step.given)
        for number in samples
        if replica < len(step.given) - len(step.active)
        or step.active[replica - (len(step.given) - len(step.active))] in step.counted
    ]
    issued = 3 * len(outcome.steps)
    return sorted([*gradients, *outcome.book.waiting]) == list(range(issued)) and not outcome.book.leased
