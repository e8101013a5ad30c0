"""What an elastic replica costs the core: time to join, stall, CPU per step, time until a death is seen.

    python tests/benchmarks/elastic.py [--json] [--sizes 1M,10M] [--steps 4] [--tokens 2048]

The last line of stdout is one JSON object; everything else goes to stderr. One core replica and one hybrid replica, each one
process on one thread, over loopback. Batches are twice as large while the hybrid is active, so that the core's own share of
`--tokens` tokens a step stays the same. `step_overhead_fraction` is the CPU time of the exchange (the training thread in it, and
all other threads, less what they use without a replica) over that of the rest of the step; `step_difference_fraction` compares
whole steps with and without an active replica, which also shows what two processes on one machine take from each other's caches.
`core_stall_ms` is the time of the training thread in copies: of the gradient in each step with a follower (median), of the
snapshot once. On a machine that others use too, look at `load`: wall times are upper bounds.
"""

import argparse
import json
import os
import platform
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random
from statistics import fmean, median
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from libra_core.elastic.spec import HybridSpec
from libra_core.engines.megatron.spec import TrainerSpec
from libra_core.engines.verification.worlds import layout
from libra_core.types.batch import TrainingSequence
from libra_core.types.ids import BatchId, PolicyVersion
from support.elastic_worlds import Processes, answers, core_spec, one_replica

SIZES = {"1M": (128, 4, 384), "10M": (320, 8, 1024)}
"""Hidden size, layers, feed-forward size."""
VOCABULARY = 512
SEQUENCE_TOKENS = 256
TARGETS = {"core_stall_ms": 30.0, "step_overhead_fraction": 0.05}


@dataclass(frozen=True, slots=True, kw_only=True)
class Course:
    """Steps of the core: alone, until the hybrid is active, with it, and until it is seen dead."""

    steps: int
    tokens: int


def build_folder(folder: Path, size: str) -> Path:
    import torch
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedTokenizerFast

    hidden, layers, feed_forward = SIZES[size]
    config = AutoConfig.for_model(
        "qwen3",
        vocab_size=VOCABULARY,
        hidden_size=hidden,
        intermediate_size=feed_forward,
        num_hidden_layers=layers,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=hidden // 4,
        max_position_embeddings=1024,
        tie_word_embeddings=True,
        rope_parameters={"rope_type": "default", "rope_theta": 1e6},
    )
    torch.manual_seed(0)
    AutoModelForCausalLM.from_config(config, dtype=torch.float32).save_pretrained(folder)
    words = {f"t{index}": index for index in range(VOCABULARY)}
    PreTrainedTokenizerFast(tokenizer_object=Tokenizer(WordLevel(words, unk_token="t0"))).save_pretrained(folder)
    return folder


def batch(step: int, tokens: int) -> tuple[TrainingSequence, ...]:
    random = Random(step)
    return tuple(
        TrainingSequence(
            token_ids=tuple(random.randrange(VOCABULARY) for _ in range(SEQUENCE_TOKENS)),
            loss_mask=(0, *(1,) * (SEQUENCE_TOKENS - 1)),
            logprobs=(-6.2,) * SEQUENCE_TOKENS,
            advantage=random.gauss(0.0, 1.0),
            group_index=index,
        )
        for index in range(tokens // SEQUENCE_TOKENS)
    )


@dataclass(slots=True, kw_only=True)
class Meter:
    """CPU time of the training thread in the exchange, and when it stopped waiting."""

    folder: Path
    rows: list[dict[str, Any]]
    exchange_cpu_s: float = 0.0
    collected_s: float = 0.0

    def around(self, name: str, method: Callable[..., None]) -> Callable[..., None]:
        def measured(*arguments: Any) -> None:
            if name == "collect":
                (self.folder / f"waits-{len(self.rows)}").touch()
            started_s = time.thread_time()
            method(*arguments)
            self.exchange_cpu_s += time.thread_time() - started_s
            if name == "collect":
                self.collected_s = time.time()

        return measured


def core_rank(spec: TrainerSpec, folder: str, course: Course) -> dict[str, Any]:
    from libra_core.engines.megatron.trainer import MegatronTrainer

    trainer = MegatronTrainer(spec)
    exchange = trainer.exchange
    assert exchange is not None
    (Path(folder) / "address.json").write_text(json.dumps(exchange.address))
    rows: list[dict[str, Any]] = []
    meter = Meter(folder=Path(folder), rows=rows)
    for name in ("collect", "keep", "publish"):
        setattr(exchange, name, meter.around(name, getattr(exchange, name)))
    follower_from = course.steps + 1
    while not rows or not rows[-1]["dropped"]:
        step = len(rows)
        if step == follower_from:
            (Path(folder) / "go").touch()
            while 0 not in (exchange.endpoint.links() if exchange.endpoint else {}):
                time.sleep(0.002)
        share = 2 if exchange.active else 1
        (Path(folder) / f"step-{step}").write_text(str(share))
        sequences = batch(step, share * course.tokens)
        cpu_s, main_s, meter.exchange_cpu_s = time.process_time(), time.thread_time(), 0.0
        trainer.begin_step(BatchId(f"step-{step}"), PolicyVersion(step))
        trainer.accumulate(sequences)
        trainer.finish_step()
        last = exchange.last
        rows.append(
            {
                "cpu_s": (step_cpu_s := time.process_time() - cpu_s),
                "exchange_cpu_s": meter.exchange_cpu_s + step_cpu_s - (time.thread_time() - main_s),
                "collected_s": meter.collected_s,
                "waited_s": last.waited_s,
                "stall_ms": 1000 * last.stall_s,
                "active": bool(last.counted),
                "dropped": bool(last.dropped),
                "followed": exchange.needs_whole_gradient,
            }
        )
    trainer.close()
    return {"rows": rows}


def hybrid_rank(spec: TrainerSpec, folder: str, core: TrainerSpec, course: Course) -> None:
    """Ends by killing itself while the core waits for it."""
    from libra_core.engines.megatron.hybrid import HybridReplica
    from libra_core.engines.megatron.trainer import MegatronTrainer

    started_s = time.monotonic()
    trainer = MegatronTrainer(spec)
    start_s = time.monotonic() - started_s
    while not (Path(folder) / "go").exists():
        time.sleep(0.002)
    assert core.elastic is not None
    address = tuple(json.loads((Path(folder) / "address.json").read_text()))
    replica = HybridReplica(trainer, core.elastic, HybridSpec(slot=0, core_dp=1, endpoints=((address,),)))
    joined_s = time.monotonic()
    join = replica.join(1, deadline_s=300.0)
    report = {
        "start_s": start_s,
        "join_s": time.monotonic() - joined_s,
        "snapshot_s": join.snapshot_s,
        "replay_s": join.replay_s,
        "replayed": join.replayed,
    }
    for number in range(course.steps + 1):
        step = int(replica.version)
        while not (Path(folder) / f"step-{step}").exists():
            time.sleep(0.002)
        replica.begin_step(BatchId(f"step-{step}"))
        replica.accumulate(batch(step, 2 * course.tokens))
        if number == course.steps:
            while not (Path(folder) / f"waits-{step}").exists():
                time.sleep(0.002)
            time.sleep(0.5)
            report["killed_s"] = time.time()
            (Path(folder) / "hybrid.json").write_text(json.dumps(report))
            os.kill(os.getpid(), signal.SIGKILL)
        replica.contribute()
        replica.follow(deadline_s=300.0)


def measure(size: str, course: Course) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder, Processes() as processes:
        model = build_folder(Path(folder) / "model", size)
        core = core_spec(model, layout(), contribution_s=300.0, frame_s=300.0)
        training = core.training.model_copy(update={"micro_batch_tokens": 1024, "collective_timeout_s": 300.0})
        core = replace(core, training=training)
        ranks = processes.start(core_rank, core, folder, course)
        processes.start(hybrid_rank, one_replica(core), folder, core, course)
        rows = answers(ranks, seconds=1200.0)[0]["rows"]
        hybrid = json.loads((Path(folder) / "hybrid.json").read_text())
    alone = rows[1 : course.steps + 1]
    active = [row for row in rows if row["active"]]
    snapshot = max((row["stall_ms"] for row in rows if not row["active"]), default=0.0)
    published = median(row["stall_ms"] for row in active)
    alone_s, active_s = fmean(row["cpu_s"] for row in alone), fmean(row["cpu_s"] for row in active)
    without_s = fmean(row["exchange_cpu_s"] for row in alone)
    exchange_s = fmean(row["exchange_cpu_s"] for row in active) - without_s
    return {
        "join_s": round(hybrid["join_s"], 3),
        "core_stall_ms": round(max(snapshot, published), 2),
        "snapshot_copy_ms": round(snapshot, 2),
        "publish_copy_ms": round(published, 2),
        "step_overhead_fraction": round(exchange_s / (active_s - exchange_s), 4),
        "step_difference_fraction": round(active_s / alone_s - 1, 4),
        "exchange_cpu_ms": {"active": round(1000 * (exchange_s + without_s), 2), "alone": round(1000 * without_s, 2)},
        "core_cpu_s_per_step": {"alone": round(alone_s, 3), "active": round(active_s, 3)},
        "core_waited_s": [round(row["waited_s"], 3) for row in active],
        "death_detect_ms": round(1000 * (rows[-1]["collected_s"] - hybrid["killed_s"]), 1),
        "role_switch_s": {"start_replica": round(hybrid["start_s"], 2)}
        | {name: round(hybrid[name], 3) for name in ("snapshot_s", "replay_s")},
        "steps": {"alone": len(alone), "active": len(active), "replayed": hybrid["replayed"]},
        "core_tokens_per_step": course.tokens,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--sizes", default="1M,10M")
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--tokens", type=int, default=2048)
    options = parser.parse_args()
    sizes = options.sizes.split(",")
    if unknown := set(sizes) - SIZES.keys():
        parser.error(f"no size {', '.join(sorted(unknown))}; there are {', '.join(SIZES)}")
    if options.steps < 1 or options.tokens < SEQUENCE_TOKENS:
        parser.error(f"at least 1 step and {SEQUENCE_TOKENS} tokens are needed")
    course = Course(steps=options.steps, tokens=options.tokens)
    results = {size: measure(size, course) for size in sizes}
    largest = list(results.values())[-1]
    answer = {
        "results": results,
        "targets": TARGETS,
        "met": {name: largest[name] <= bound for name, bound in TARGETS.items()},
        "machine": f"{platform.machine()}, {os.cpu_count()} cores",
        "load": [round(value, 1) for value in os.getloadavg()],
    }
    if not options.json:
        print(json.dumps(answer, indent=2), file=sys.stderr)
    print(json.dumps(answer))


if __name__ == "__main__":
    main()
