"""Seconds until a moved context can go on: KV handed over through the shared folder against prefilled again, by context length.

    python tests/benchmarks/kv_hand_over.py [--json] [--sizes 1m,6m] [--contexts 256,1024,4096,16384] [--repetitions 3]

The last line of stdout is one JSON object; everything else goes to stderr. Two real engines of TP 1 on this host, float32, random
weights. Medians over the repetitions, wall time as a trajectory sees it:
`offer` (the engine before copies the blocks), `load` (request to first token at the target, which loads them), `hand_over` both,
`reprefill` (request to first token at a target that holds nothing), `stay` (the engine before goes on from its prefix cache).
"""

import argparse
import json
import os
import platform
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from libra_core.engines.verification.engine_model import EngineModelShape, build_engine_model
from libra_core.engines.verification.remote import RemoteObject
from libra_core.engines.vllm.spec import SHARED_FOLDER, EngineSpec, KvTransferSpec, process_environment
from libra_core.types.ids import EngineId
from libra_core.types.trajectory import GeneratedTurn, GenerationRequest

LONGEST = 16_640
SHAPES = {
    "1m": EngineModelShape(vocab_size=1024, max_positions=LONGEST),
    "6m": EngineModelShape(
        hidden_size=256, ffn_size=768, num_layers=6, num_heads=8, num_kv_heads=4, vocab_size=4096, max_positions=LONGEST
    ),
}
BLOCK = 32
_ids = iter(range(10**6))


def main() -> None:
    options = _options()
    contexts = [int(length) for length in options.contexts.split(",")]
    sizes = {size: measure(SHAPES[size], contexts, options.repetitions) for size in options.sizes.split(",")}
    report: dict[str, Any] = {
        "benchmark": "kv_hand_over",
        "machine": f"{platform.machine()}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f} at the end",
        "repetitions": options.repetitions,
        "sizes": sizes,
    }
    if not options.json:
        _print_table(sizes)
    print(json.dumps(report))


def measure(shape: EngineModelShape, contexts: list[int], repetitions: int) -> list[dict[str, Any]]:
    with tempfile.TemporaryDirectory(dir="/dev/shm") as name:
        model = build_engine_model(Path(name) / "model", seed=1, shape=shape)
        with _engines(model, Path(name) / "kv") as (home, target):
            _once(home, target, shape, contexts[0])  # imports and first allocations
            return [_row(length, [_once(home, target, shape, length) for _ in range(repetitions)], shape) for length in contexts]


def _once(home: RemoteObject, target: RemoteObject, shape: EngineModelShape, length: int) -> dict[str, float]:
    moved, other = _prompt(shape, length), _prompt(shape, length)
    _generate(home, moved)
    started_s = time.monotonic()
    ticket = home.call("offer_kv", f"o{next(_ids)}", moved[: (length - 1) // BLOCK * BLOCK + 1], 0)
    offer_s = time.monotonic() - started_s
    loading = _generate(target, moved, ticket)
    assert loading.loaded_tokens == (length - 1) // BLOCK * BLOCK, "the figure would not be that of a hand-over"
    return {
        "offer_s": offer_s,
        "load_s": loading.first_token_s,
        "hand_over_s": offer_s + loading.first_token_s,
        "reprefill_s": _generate(target, other).first_token_s,
        "stay_s": _generate(home, moved).first_token_s,
    }


def _row(length: int, found: list[dict[str, float]], shape: EngineModelShape) -> dict[str, Any]:
    medians = {name: round(statistics.median(one[name] for one in found), 5) for name in found[0]}
    head_size = shape.hidden_size // shape.num_heads
    mib = length * shape.num_layers * shape.num_kv_heads * head_size * 2 * 4 / 2**20
    ratio = medians["reprefill_s"] / medians["hand_over_s"]
    return {"context_tokens": length, "kv_mib": round(mib, 2), **medians, "reprefill_over_hand_over": round(ratio, 2)}


def _generate(engine: RemoteObject, tokens: tuple[int, ...], ticket: Any = None) -> GeneratedTurn:
    return engine.call(
        "generate",
        GenerationRequest(
            request_id=f"r{next(_ids)}",
            token_ids=tokens,
            max_new_tokens=1,
            temperature=0.0,
            stop_token_ids=(),
            kv_ticket=ticket,
        ),
    )


def _prompt(shape: EngineModelShape, length: int) -> tuple[int, ...]:
    """Not seen before, so that no prefix is cached."""
    return tuple(random.randrange(shape.vocab_size) for _ in range(length))


@contextmanager
def _engines(model: Path, folder: Path) -> Iterator[list[RemoteObject]]:
    transfer = KvTransferSpec(connector=SHARED_FOLDER, options={"folder": str(folder), "max_bytes": 1 << 30})
    engines: list[RemoteObject] = []
    try:
        for number in range(2):
            spec = EngineSpec(
                engine_id=EngineId(f"e{number}"),
                model_path=str(model),
                kv_cache_mib=512,
                max_model_len=LONGEST,
                kv_transfer=transfer,
            )
            engines.append(RemoteObject("libra_core.engines.vllm.engine:VllmEngine", spec, environment=process_environment(spec)))
        for started in [engine.submit("start") for engine in engines]:
            started.result(300)
        yield engines
    finally:
        for engine in engines:
            engine.close()


def _print_table(sizes: dict[str, list[dict[str, Any]]]) -> None:
    for size, rows in sizes.items():
        print(f"{size}: {' '.join(f'{name:>15}' for name in rows[0])}", file=sys.stderr)
        for row in rows:
            print(f"{size}: {' '.join(f'{value:>15}' for value in row.values())}", file=sys.stderr)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="no table")
    parser.add_argument("--sizes", default="1m,6m", help=f"of {', '.join(SHAPES)}")
    parser.add_argument("--contexts", default="256,1024,4096,16384", help=f"tokens, each at most {LONGEST - 1}")
    parser.add_argument("--repetitions", type=int, default=3)
    return parser.parse_args()


if __name__ == "__main__":
    main()
