"""The simulator against the real engine: the same multi-turn requests on a vLLM engine of this host and in virtual time.

    python tests/benchmarks/simulator.py [--json] [--batches 3] [--trajectories 64]

Truth: the decode law is fitted to `data/profiles/vllm_cpu_profile.csv` (8.3M parameters, float32, one thread; the best of its
repetitions, for the host was busy); the prefill law is measured here, for that file has none. A second truth, measured wholly in
this session, shows what is left when the host is not as fast as it was for the profile. Everything real is in CPU seconds of the
engine's process: the host may be busy with other work. A tool wait is CPU time too; when nothing runs, the clock jumps to the
next return.
"""

import argparse
import csv
import heapq
import json
import os
import platform
import tempfile
import time
from concurrent.futures import Future
from contextlib import closing
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from libra_core.costs.measured import fit_engine
from libra_core.engines.calibration.meter import EngineMeter
from libra_core.engines.vllm.spec import EngineSpec
from libra_core.simulation.truth import PublicationTruth, TrainerTruth, TransitionTruth, Truth
from libra_core.simulation.workload.trajectories import Trajectories, from_records
from libra_core.simulation.world import NO_CAP, Pacing, World
from libra_core.types.ids import EngineId
from libra_core.types.laws import EngineLaw
from libra_core.types.lengths import LengthRecord
from libra_core.types.plan import Plan, RolloutLayout, TrainLayout
from libra_core.types.trajectory import GenerationRequest

PROFILE = Path(os.environ.get("LIBRA_DATA", "../shared/data")) / "profiles" / "vllm_cpu_profile.csv"
VOCABULARY = 4096
DECODE_GRID = ((1, 256), (16, 256), (64, 256), (1, 1024), (16, 1024), (64, 1024))
PREFILLS, STEPS = (64, 256, 1024, 2000), 24
POLL_S = 0.002


@dataclass
class Measured:
    """One batch on the real engine; CPU seconds since its start."""

    finished_s: dict[int, float] = field(default_factory=dict)

    @property
    def makespan_s(self) -> float:
        return max(self.finished_s.values())

    @property
    def mean_latency_s(self) -> float:
        return float(np.mean(list(self.finished_s.values())))


def requests(count: int, seed: int) -> Trajectories:
    """Agents with one to six turns and short tools."""
    random = np.random.default_rng(seed)
    records = []
    for _ in range(count):
        turns = int(np.clip(random.lognormal(0.8, 0.5), 1, 6))
        records.append(
            LengthRecord(
                prompt_tokens=int(random.integers(40, 400)),
                generated_tokens=tuple(int(value) for value in np.clip(random.lognormal(4.2, 0.8, turns), 8, 800)),
                tool_tokens=tuple(int(value) for value in random.integers(10, 200, turns - 1)),
                tool_s=tuple(float(value) for value in np.minimum(0.2 * random.lognormal(0, 1, turns - 1), 3)),
            )
        )
    return from_records(records, group_size=2)


class RealEngine:
    """Drives trajectories through one engine, each turn sent when its tool has returned."""

    def __init__(self, meter: EngineMeter) -> None:
        self._meter = meter
        self._skipped_s = 0.0
        self._tokens: dict[int, list[int]] = {}

    def run(self, work: Trajectories) -> Measured:
        result, began = Measured(), self._now()
        running: dict[int, tuple[Future[Any], int]] = {i: self._send(work, i, 0) for i in range(len(work))}
        returns: list[tuple[float, int, int]] = []
        while running or returns:
            for i, (future, turn) in list(running.items()):
                if future.done():
                    del running[i]
                    self._tokens[i] += future.result().token_ids
                    if turn + 1 == work.turns[i]:
                        result.finished_s[i] = self._now() - began
                    else:
                        heapq.heappush(returns, (self._now() + work.tool_s[work.first_turn[i] + turn], i, turn + 1))
            if not running and returns:
                self._skipped_s += max(returns[0][0] - self._now(), 0.0)
            while returns and returns[0][0] <= self._now():
                _, i, turn = heapq.heappop(returns)
                running[i] = self._send(work, i, turn)
            time.sleep(POLL_S)
        return result

    def _now(self) -> float:
        return self._meter._now() + self._skipped_s

    def _send(self, work: Trajectories, i: int, turn: int) -> tuple[Future[Any], int]:
        place = int(work.first_turn[i]) + turn
        arriving = work.prompt_tokens[i] if turn == 0 else work.returned[place - 1]
        context = self._tokens.setdefault(i, []) if turn else self._tokens.__setitem__(i, []) or self._tokens[i]
        context += self._meter.prompt(int(arriving))
        self._meter._issued += 1
        request = GenerationRequest(
            request_id=f"trajectory-{self._meter._issued}",
            token_ids=tuple(context),
            max_new_tokens=int(work.generated[place]),
            temperature=1.0,
            stop_token_ids=(),
        )
        return self._meter._engine.submit("generate", request), turn


def profiled_model(folder: Path) -> Path:
    """The model of the profile (docs/measurements.md#vllm-on-cpu): 8.3M random weights, wide enough not to collapse."""
    import torch
    from transformers import Qwen3Config, Qwen3ForCausalLM

    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=VOCABULARY,
        hidden_size=320,
        intermediate_size=960,
        num_hidden_layers=6,
        num_attention_heads=8,
        num_key_value_heads=4,
        head_dim=32,
        max_position_embeddings=4096,
        initializer_range=0.12,
        tie_word_embeddings=True,
    )
    Qwen3ForCausalLM(config).save_pretrained(folder)
    return folder


def profile_law() -> tuple[float, float, float]:
    """a, b, c of the recorded profile: float32, best repetition of each cell, relative least squares."""
    best: dict[tuple[int, int], tuple[float, float]] = {}
    with PROFILE.open() as file:
        for row in csv.DictReader(file):
            if row["dtype"] == "float32":
                key = (int(row["batch"]), int(row["context"]))
                value = (float(row["total_ctx"]), float(row["cpu_ms_min"]) / 1e3)
                best[key] = min(best.get(key, value), value, key=lambda pair: pair[1])
    x = np.array([[1.0, batch, total] for (batch, _), (total, _) in best.items()])
    seconds = np.array([value for _, value in best.values()])
    a, b, c = np.linalg.lstsq(x / seconds[:, None], np.ones_like(seconds), rcond=None)[0]
    return float(a), float(b), float(c)


def session_laws(meter: EngineMeter, sweeps: int) -> dict[str, float]:
    """Decode and prefill measured now, the least of the sweeps."""
    decode = [[meter.decode_step(batch, context, STEPS) for batch, context in DECODE_GRID] for _ in range(sweeps)]
    prefill = [[meter.prefill(tokens, 4) for tokens in PREFILLS] for _ in range(sweeps)]
    cells = [min(visits, key=lambda cell: cell.step_s) for visits in zip(*decode, strict=True)]
    prompts = [min(visits, key=lambda cell: cell.seconds) for visits in zip(*prefill, strict=True)]
    law = fit_engine(1, meter.facts.kv_tokens, cells, prompts).law
    pair = max(law.prefill_c_s_per_token2 * 2, 0.0)
    return {
        "a": law.a_s,
        "b": law.b_s,
        "c": law.c_s,
        "prefill": law.prefill_b_s_per_token,
        "pair": pair,
        "fixed": law.prefill_a_s,
    }


def truth_of(law: tuple[float, float, float], prefill: dict[str, float], kv_tokens: int) -> Truth:
    a, b, c = law
    engine = EngineLaw(
        a_s=a,
        b_s=b,
        c_s=c,
        prefill_b_s_per_token=prefill["prefill"],
        prefill_c_s_per_token2=prefill["pair"],
        kv_tokens=kv_tokens,
    )
    trainer = TrainerTruth(
        parameters=1, attention_width=0, flops_per_parameter_token=1, flops_per_width_pair=0, peak_flops=1e12, mfu=1, fixed_s=0
    )
    still = TransitionTruth(engine_start_s=0, trainer_rebuild_s=0, hybrid_engine_s=0, hybrid_trainer_s=0)
    return Truth(
        name="cpu",
        engines={1: engine},
        trainer=trainer,
        publication=PublicationTruth(trainer_waits_s=0, engines_pause_s=0),
        transitions=still,
    )


def simulated(truth: Truth, work: Trajectories) -> tuple[float, float]:
    """Makespan and mean latency."""
    pacing = Pacing(batch=len(work), group_size=2, staleness=0, kv_fill=NO_CAP, most_running=128)
    world = World(truth, work, pacing, Plan(train=TrainLayout(), rollout=RolloutLayout(engines=((1, 1),))))
    world.run_to(1)
    ends = world.state.trajectories.finished_s
    return float(ends.max()), float(ends.mean())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="only the JSON line")
    parser.add_argument("--batches", type=int, default=3)
    parser.add_argument("--trajectories", type=int, default=64)
    parser.add_argument("--sweeps", type=int, default=3, help="visits of each cell of the session's own profile")
    options = parser.parse_args()
    say = (lambda text: None) if options.json else partial(print, flush=True)
    rows = []
    with tempfile.TemporaryDirectory(prefix="libra-simulator-") as temporary:
        folder = profiled_model(Path(temporary) / "model")
        spec = EngineSpec(
            engine_id=EngineId("real"),
            model_path=str(folder),
            max_num_seqs=128,
            max_model_len=4096,
            kv_cache_mib=1024,
            start_deadline_s=900.0,
        )
        meter = EngineMeter(spec, vocab_size=VOCABULARY, log=folder.parent / "engine.log")
        with closing(meter):
            say(f"engine started, {meter.facts.kv_tokens} KV tokens")
            meter.seconds([(meter.prompt(256), 16) for _ in range(8)])
            law = session_laws(meter, options.sweeps)
            say(f"profile {profile_law()}, session {law}")
            truths = {"profile": profile_law(), "session": (law["a"], law["b"], law["c"])}
            for seed in range(options.batches):
                work = requests(options.trajectories, seed)
                real = RealEngine(meter).run(work)
                row: dict[str, Any] = {"seed": seed, "makespan_s": real.makespan_s, "mean_latency_s": real.mean_latency_s}
                for name, values in truths.items():
                    makespan, latency = simulated(truth_of(values, law, meter.facts.kv_tokens), work)
                    row[f"{name}_makespan_error"] = makespan / real.makespan_s - 1
                    row[f"{name}_latency_error"] = latency / real.mean_latency_s - 1
                rows.append(row)
                say(json.dumps(row))
    names = [f"{truth}_{what}_error" for truth in ("profile", "session") for what in ("makespan", "latency")]
    worst = {f"worst_{name}": max(abs(row[name]) for row in rows) for name in names}
    load = os.getloadavg()[0]
    print(json.dumps({"machine": platform.machine(), "load": load, "clock": "CPU seconds", **worst, "law": law, "rows": rows}))


if __name__ == "__main__":
    main()
