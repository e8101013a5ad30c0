"""Fit the simulator's own laws of Qwen3-14B on A800 from measured A100 kernels, and print them as YAML.

    python tests/benchmarks/fit_truth.py

The output is `engines` and the trainer's `tp_time` of `configs/study/truth/qwen3_14b_a800.yaml`, whose other parts come from
elsewhere; `fit_error_max` is for reading only.

A step is the sum of its measured GEMMs, KV reads and all-reduces; the sum is fitted to `a + b·sequences + c·context` over a grid
of batches and contexts that fit the KV cache. It shares no code with `libra_core.costs`, which a plan is made from.
"""

import os
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import yaml

DATA = Path(os.environ.get("LIBRA_DATA", "../shared/data")) / "profiles" / "gpu_kernels" / "a100_sxm"
LAYERS, WIDTH, HEADS, KV_HEADS, HEAD, FFN, VOCABULARY, PARAMETERS = 40, 5120, 40, 8, 128, 17408, 151936, 14.8e9
PEAK_FLOPS, KV_BYTES_PER_S, ATTENTION_SHARE = 312e12, 1.43e12, 0.45
SLOWER_LINK, LINK_BYTES_PER_S = 1.5, 150e9
PREFILL_OVERHEAD, HOST_S, HOST_PER_SEQUENCE_S, SMALL_KERNELS_S = 1.35, 1.2e-3, 6e-6, 8e-6
GRID_SEQUENCES, GRID_CONTEXTS, PREFILL_TOKENS = (1, 4, 16, 32, 64, 128, 256), (1023, 4095, 8191, 16383, 32767), 4096
GPU_BYTES, USED, WORKSPACE_BYTES, WEIGHT_BYTES = 80e9, 0.9, 3e9, 29.5e9
KV_BYTES_PER_TOKEN = 2 * LAYERS * KV_HEADS * HEAD * 2
LAUNCH_MS = 3e-3


class Kernels:
    """Measured latencies in milliseconds."""

    def __init__(self) -> None:
        gemm = pd.read_parquet(DATA / "gemm/vllm/0.14.0/gemm_perf.parquet")
        self.gemm_rows = gemm[gemm.gemm_dtype.str.contains("bf")]
        self.shapes = self.gemm_rows.groupby(["n", "k"]).size().reset_index()
        reduce = pd.read_parquet(DATA / "comm/vllm/0.14.0/custom_allreduce_perf.parquet")
        self.reduce_rows = reduce[reduce.backend == "vllm_graph"]

    def gemm(self, tokens: int, n: int, k: int) -> float:
        """The nearest measured matrix, scaled by its size, interpolated in tokens."""
        nearest = (np.abs(np.log(self.shapes.n / n)) + np.abs(np.log(self.shapes.k / k))).idxmin()
        rows = self.gemm_rows[(self.gemm_rows.n == self.shapes.n[nearest]) & (self.gemm_rows.k == self.shapes.k[nearest])]
        rows = rows.sort_values("m")
        measured = np.interp(np.log(tokens), np.log(rows.m), rows.latency)
        scale = n * k / (self.shapes.n[nearest] * self.shapes.k[nearest])
        return LAUNCH_MS + max(measured - LAUNCH_MS, 0.0) * scale

    def all_reduce(self, tp: int, volume: float) -> float:
        """The A800's NVLink has two thirds of the A100's bandwidth; latency is the same."""
        if tp == 1:
            return 0.0
        rows = self.reduce_rows[self.reduce_rows.num_gpus == tp].sort_values("message_size")
        least = rows.latency.min()
        return least + SLOWER_LINK * (np.interp(volume, rows.message_size, rows.latency) - least)

    def matrices(self, tp: int, tokens: int) -> float:
        attention = self.gemm(tokens, (HEADS + 2 * KV_HEADS) * HEAD // tp, WIDTH) + self.gemm(tokens, WIDTH, WIDTH // tp)
        return attention + self.gemm(tokens, 2 * FFN // tp, WIDTH) + self.gemm(tokens, WIDTH, FFN // tp)

    def decode_s(self, tp: int, sequences: int, context: int) -> float:
        reads = 0.010 + sequences * context * 2 * HEAD * 2 * max(1, KV_HEADS // tp) / KV_BYTES_PER_S * 1e3
        reduces = 2 * self.all_reduce(tp, sequences * WIDTH * 2)
        layer = self.matrices(tp, sequences) + reads + reduces + SMALL_KERNELS_S * 1e3
        host = HOST_S * 1e3 + HOST_PER_SEQUENCE_S * 1e3 * sequences
        return (LAYERS * layer + self.gemm(sequences, VOCABULARY // tp, WIDTH) + host) / 1e3

    def prefill_s(self, tp: int, tokens: int) -> float:
        ring = tokens * WIDTH * 2 * 2 * (tp - 1) / tp / LINK_BYTES_PER_S * 1e3
        reduces = 2 * max(self.all_reduce(tp, tokens * WIDTH * 2), ring) if tp > 1 else 0.0
        layer = (self.matrices(tp, tokens) + reduces + SMALL_KERNELS_S * 1e3) * PREFILL_OVERHEAD
        return LAYERS * (layer + tokens**2 / 2 * attention_pair_s(tp) * 1e3 / LAYERS) / 1e3


def attention_pair_s(tp: int) -> float:
    """Of one token on one token of context, all layers."""
    return LAYERS * 4 * WIDTH / tp / (PEAK_FLOPS * ATTENTION_SHARE)


def engine(kernels: Kernels, tp: int) -> dict[str, float]:
    rows, seconds = [], []
    for sequences in GRID_SEQUENCES:
        for context in GRID_CONTEXTS:
            if sequences * context < 4.2e5 * tp:
                rows.append([1, sequences, sequences * context])
                seconds.append(kernels.decode_s(tp, sequences, context))
    x, y = np.array(rows, float), np.array(seconds)
    law, *_ = np.linalg.lstsq(x / y[:, None], np.ones_like(y), rcond=None)
    error = np.abs(x @ law / y - 1)
    pair = attention_pair_s(tp)
    per_token = (kernels.prefill_s(tp, PREFILL_TOKENS) - pair * PREFILL_TOKENS**2 / 2) / PREFILL_TOKENS
    kv_tokens = int((tp * (GPU_BYTES * USED - WORKSPACE_BYTES) - WEIGHT_BYTES) / KV_BYTES_PER_TOKEN)
    values = {"a_s": law[0], "b_s": law[1], "c_s": law[2], "prefill_b_s_per_token": per_token, "prefill_c_s_per_token2": pair}
    return {key: float(f"{value:.4g}") for key, value in values.items()} | {
        "kv_tokens": kv_tokens,
        "fit_error": float(f"{error.mean():.3f}"),
        "fit_error_max": float(f"{error.max():.3f}"),
    }


def tp_time() -> dict[int, float]:
    """Training time of a degree over that of degree 4: six all-reduces a layer and token beside the matrices."""

    def per_token(tp: int) -> float:
        compute = 8 * PARAMETERS / (tp * PEAK_FLOPS * 0.42)
        ring = 6 * LAYERS * 2 * (tp - 1) / tp * WIDTH * 2 / LINK_BYTES_PER_S
        return tp * (compute + ring)

    return {tp: float(f"{per_token(tp) / per_token(4):.3f}") for tp in (1, 2, 4, 8)}


def main() -> None:
    kernels = Kernels()
    fitted = {
        "engines": {tp: engine(kernels, tp) for tp in (1, 2, 4, 8)},
        "tp_time": tp_time(),
    }
    yaml.safe_dump(fitted, sys.stdout, sort_keys=False)


if __name__ == "__main__":
    main()
