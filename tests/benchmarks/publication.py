"""Seconds per weight publication by phase, for about 1M and 95M parameters: real trainer, real engine, file in shared memory.

    python tests/benchmarks/publication.py [--json] [--repetitions 8] [--sizes 1m,95m]

The last line of stdout is one JSON object; everything else goes to stderr. Phases of one publication, one after the other:
`export` (trainer writes the file), `stage` (engine maps and checks it while generating), `pause`, `load`, `resume`. The engine
generates nothing during `paused` = pause + load + resume. `busy` publications meet eight running requests, `idle` none.
"""

import argparse
import json
import os
import platform
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from libra_core.config.training import TrainingConfig
from libra_core.engines.verification.engine_model import EngineModelShape, build_engine_model
from libra_core.engines.verification.remote import RemoteObject
from libra_core.engines.verification.worlds import free_port, spec_of
from libra_core.engines.vllm.spec import EngineSpec, process_environment
from libra_core.engines.weight_source import FileWeights
from libra_core.types.ids import EngineId
from libra_core.types.trajectory import GenerationRequest

SHAPES = {
    "1m": EngineModelShape(vocab_size=1024),
    "95m": EngineModelShape(
        hidden_size=768, ffn_size=2304, num_layers=12, num_heads=12, num_kv_heads=4, vocab_size=16384, max_positions=512
    ),
}
PAUSE_BOUND_S = {"1m": 0.060, "95m": 0.250}
NUM_RUNNING = 8


def main() -> None:
    options = _options()
    sizes = {size: measure(SHAPES[size], options.repetitions) for size in options.sizes.split(",")}
    report: dict[str, Any] = {
        "benchmark": "publication",
        "machine": f"{platform.machine()}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f} at the end",
        "repetitions": options.repetitions,
        "paused_bound_s": PAUSE_BOUND_S,
        "sizes": sizes,
    }
    if not options.json:
        _print_table(sizes)
    print(json.dumps(report))


def measure(shape: EngineModelShape, repetitions: int) -> dict[str, Any]:
    """Publish alternately onto an idle and a busy engine; the first publication of each is a warm-up."""
    with (
        tempfile.TemporaryDirectory(prefix="libra-publication-", dir="/dev/shm") as folder,
        _pair(Path(folder), shape) as (
            trainer,
            engine,
            size_bytes,
        ),
    ):
        publication = Publication(trainer, engine, Path(folder))
        return {"bytes": size_bytes} | {
            name: _summary([publication.run(busy=busy) for _ in range(repetitions + 1)][1:])
            for name, busy in (("idle", False), ("busy", True))
        }


class Publication:
    """Publishes one version after another from one trainer to one engine."""

    def __init__(self, trainer: RemoteObject, engine: RemoteObject, folder: Path) -> None:
        self._trainer = trainer
        self._engine = engine
        self._folder = folder
        self._version = 0

    def run(self, *, busy: bool) -> dict[str, float]:
        self._version += 1
        running = self._start_requests(NUM_RUNNING if busy else 0)
        path = self._folder / f"version-{self._version}.safetensors"
        started_s = time.perf_counter()
        self._trainer.call("export_file", str(path))
        exported_s = time.perf_counter()
        answer = self._engine.call(
            "update_weights", FileWeights(path=str(path)), self._version, in_flight="keep", recompute_kv=True
        )
        ended_s = time.perf_counter()
        path.unlink()
        self._engine.call("abort_all")
        for future in running:
            future.result(60.0)
        return {
            "export": exported_s - started_s,
            "stage": ended_s - exported_s - answer.paused_s,
            "pause": answer.pause_s,
            "load": answer.load_s,
            "resume": answer.resume_s,
            "paused": answer.paused_s,
            "total": ended_s - started_s,
        }

    def _start_requests(self, count: int) -> list[Future[Any]]:
        """Return once all of them decode: a publication that meets a long prefill waits for its end."""
        requests = [self._request(index) for index in range(count)]
        futures = [self._engine.submit("generate", request) for request in requests]
        while any(not self._engine.call("partial", request.request_id).token_ids for request in requests):
            time.sleep(0.01)
        return futures

    def _request(self, index: int) -> GenerationRequest:
        return GenerationRequest(
            request_id=f"v{self._version}-{index}",
            token_ids=tuple(range(10 + index, 74 + index)),
            max_new_tokens=400,
            temperature=1.0,
            stop_token_ids=(),
        )


@contextmanager
def _pair(folder: Path, shape: EngineModelShape) -> Iterator[tuple[RemoteObject, RemoteObject, int]]:
    """A trainer and an engine of one random model, each in its own process."""
    from dataclasses import replace

    model = build_engine_model(folder / "model", seed=1, shape=shape)
    trainer_spec = replace(spec_of(model, training=TrainingConfig()), master_port=free_port())
    engine_spec = EngineSpec(engine_id=EngineId("e0"), model_path=str(model), kv_cache_mib=256, max_num_seqs=16)
    threads = {"OMP_NUM_THREADS": "1"}
    with RemoteObject("libra_core.engines.megatron.trainer:MegatronTrainer", trainer_spec, environment=threads) as trainer:
        size_bytes = trainer.call("export_file", str(folder / "first.safetensors")).bytes
        (folder / "first.safetensors").unlink()
        variables = process_environment(engine_spec)
        with RemoteObject("libra_core.engines.vllm.engine:VllmEngine", engine_spec, environment=variables) as engine:
            engine.call("start")
            yield trainer, engine, size_bytes
        trainer.call("close")


def _summary(runs: list[dict[str, float]]) -> dict[str, dict[str, float]]:
    phases = {phase: [run[phase] for run in runs] for phase in runs[0]}
    return {
        f"{phase}_s": {"median": round(statistics.median(values), 5), "min": round(min(values), 5), "max": round(max(values), 5)}
        for phase, values in phases.items()
    }


def _print_table(sizes: dict[str, Any]) -> None:
    for size, result in sizes.items():
        for name in ("idle", "busy"):
            cells = "  ".join(
                f"{phase} {value['median'] * 1e3:.1f}/{value['max'] * 1e3:.1f}" for phase, value in result[name].items()
            )
            print(f"{size} {name}, ms median/max: {cells}", file=sys.stderr)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="no table on stderr")
    parser.add_argument("--repetitions", type=int, default=8)
    parser.add_argument("--sizes", default="1m,95m")
    return parser.parse_args()


if __name__ == "__main__":
    main()
