"""Forward time of one layer of a trainer, tabulated once per tp so that a planner's thousands of layouts cost microseconds."""

from bisect import bisect_right
from functools import lru_cache
from math import log2

import numpy as np

from libra_core.costs.curves import Array
from libra_core.costs.facts import ModelFacts
from libra_core.costs.kernels import Kernels

_GRID = [2.0 ** (exponent / 2) for exponent in range(8, 37)]
"""Tokens of a micro-batch on one rank: 16 to 262,144."""
_LOG_GRID = [log2(tokens) for tokens in _GRID]
_ATTENTION_TOKENS = 8192
"""Attention is timed on this many tokens of equal sequences, or on one sequence when it is longer."""


class LayerTimes:
    """Seconds of one forward layer on one rank; log-log interpolated between grid points, proportional beyond them."""

    def __init__(self, kernels: Kernels, model: ModelFacts, *, tp: int, ep: int) -> None:
        self._kernels, self._model, self._tp = kernels, model, tp
        tokens = np.asarray(_GRID)
        self._layer = _Table(self._layer_grid(tokens, tp, ep))
        head = kernels.gemm_s(tokens, model.vocab_size / tp, model.hidden_size)
        self._head = _Table(head + 3 * kernels.elementwise_s(8 * tokens * model.vocab_size / tp))
        reduce = kernels.collective_s("all_reduce", 2 * tokens * model.hidden_size, tp) if tp > 1 else np.full_like(tokens, 1e-30)
        self._reduce = _Table(2 * reduce)
        self._attention_s_per_pair = lru_cache(maxsize=64)(self._pair_s)

    def layer_s(self, tokens: float) -> float:
        """Matrices and small kernels, without attention scores."""
        return self._layer.at(tokens)

    def head_s(self, tokens: float) -> float:
        """Output head and log-softmax."""
        return self._head.at(tokens)

    def tp_all_reduces_s(self, tokens: float) -> float:
        """Two all-reduces, or the reduce-scatters and all-gathers of sequence parallelism that send as much."""
        return self._reduce.at(tokens) if self._tp > 1 else 0.0

    def attention_s(self, squared_tokens: float, length: float) -> float:
        """Causal attention of sequences with Σ L² = `squared_tokens`, at the rate measured for `length`."""
        return squared_tokens * self._attention_s_per_pair(round(log2(max(length, 16.0)), 1))

    def _pair_s(self, log_length: float) -> float:
        model, length = self._model, 2.0**log_length
        count = max(1.0, _ATTENTION_TOKENS / length)
        groups = max(1.0, model.num_kv_heads / self._tp)
        time = self._kernels.prefill_attention_s(count, model.num_heads / self._tp, groups, length)
        return float(np.atleast_1d(time)[0]) / (count * length**2)

    def _layer_grid(self, tokens: Array, tp: int, ep: int) -> Array:
        model, kernels = self._model, self._kernels
        qkv = (model.attention_size + 2 * model.kv_size) / tp
        total = kernels.gemm_s(tokens, qkv, model.hidden_size)
        total = total + kernels.gemm_s(tokens, model.hidden_size, model.attention_size / tp)
        total = total + 2 * kernels.elementwise_s(8 * tokens * model.hidden_size / tp)
        total = total + 2 * kernels.elementwise_s(4 * tokens * qkv)
        if model.is_moe:
            # every rank of the ep group sends its tokens: an expert rank works on ep times the tokens with 1/ep of the experts
            experts = kernels.moe_s(tokens * ep / tp, model, tp=1, ep=ep)
            return total + experts + kernels.gemm_s(tokens, model.num_experts, model.hidden_size)
        width = model.ffn_size / tp
        total = total + kernels.gemm_s(tokens, (2 if model.gated else 1) * width, model.hidden_size)
        total = total + kernels.gemm_s(tokens, model.hidden_size, width)
        return total + kernels.elementwise_s(2 * tokens * (3 if model.gated else 2) * width)


class _Table:
    """Log-log interpolation over `_GRID`."""

    def __init__(self, seconds: Array) -> None:
        self._log = [float(value) for value in np.log2(seconds)]

    def at(self, tokens: float) -> float:
        where = log2(max(tokens, 1e-9))
        grid, values = _LOG_GRID, self._log
        if where <= grid[0]:
            return float(2.0 ** values[0])
        if where >= grid[-1]:
            return float(2.0 ** (values[-1] + where - grid[-1]))
        right = bisect_right(grid, where)
        share = (where - grid[right - 1]) / (grid[right] - grid[right - 1])
        return float(2.0 ** (values[right - 1] + share * (values[right] - values[right - 1])))
