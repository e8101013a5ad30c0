"""One rollout engine: decode and prefill time, KV capacity, and whether it fits (docs/costs.md#formulas).

The kernels of one engine step are summed once per degree over a grid of batches and contexts; the planner then works with the
three coefficients that reproduce the sum. Tensor parallelism divides the work of a kernel once, and no kernel becomes shorter
than its launch.
"""

from collections.abc import Iterable
from dataclasses import replace
from functools import lru_cache

import numpy as np

from libra_core.costs.facts import DeviceProfile, Fit, ModelFacts
from libra_core.costs.kernels import Array, Kernels, Number, grounding_of
from libra_core.costs.laws import EngineLaws
from libra_core.costs.least_squares import nonnegative_fit
from libra_core.types.laws import EngineLaw

_BATCHES = (1, 4, 8, 16, 32, 64, 128, 256)
_CONTEXTS = (1024, 4096, 8192, 16384, 32768)
_PREFILLS = (256, 512, 1024, 2048, 4096, 8192)
_LONG_PROMPT = 16384.0
_USUAL_KV_TOKENS = 250_000
"""Range of the law of one GPU where the model does not fit one; that law only bounds those of higher degrees."""
_LEAST_KV_TOKENS = 4096
"""An engine that cannot hold this much (or one sequence of the model's full length) is not offered."""


class RolloutCosts:
    """Engines of one model on one device. Pure; results are cached per degree."""

    def __init__(self, device: DeviceProfile, model: ModelFacts, *, utilization: float = 0.9) -> None:
        """`utilization`: share of GPU memory the engine may use, as vLLM's `gpu_memory_utilization`."""
        self.device = device
        self.model = model
        self.utilization = utilization
        self._kernels = Kernels(device)
        self._law = lru_cache(maxsize=None)(self._fitted_law)

    def laws(self, degrees: Iterable[int] = (), unused: str = "") -> EngineLaws:
        """Of every degree 1, 2, 4, ... up to the node, and of those named; `unused` says why no calibration is in their place."""
        asked = sorted({*self._powers(), *degrees})
        fits = {tp: self.fits(tp) for tp in asked}
        source = grounding_of(self.device, unused)
        return EngineLaws(
            of={tp: replace(self._law(tp), source=source) for tp, fit in fits.items() if fit.fits},
            against={tp: fit.reason for tp, fit in fits.items() if not fit.fits},
        )

    def kv_tokens(self, tp: int) -> int:
        """Tokens of KV cache of the whole engine: `(tp·(memory·utilization - workspace) - weights) / KV bytes per token`.

        Key-value heads are repeated when `tp` exceeds their number. 0 when the weights leave no room.
        """
        room = tp * (self.device.memory_bytes * self.utilization - self.device.engine_workspace_bytes) - self.model.weight_bytes
        repeated = max(1.0, tp / self.model.num_kv_heads)
        return max(0, int(room / (self.model.kv_bytes_per_token * repeated)))

    def fits(self, tp: int) -> Fit:
        """Divisibility, topology and memory, in this order."""
        model, device = self.model, self.device
        if tp > device.gpus_per_node:
            return Fit(fits=False, reason=f"tp {tp} is more than the {device.gpus_per_node} GPUs of a node")
        for what, size in (("attention heads", model.num_heads), ("feed-forward units", self._ffn_size)):
            if size % tp:
                return Fit(fits=False, reason=f"tp {tp} does not divide the {size} {what} of {model.name}")
        if model.num_kv_heads % tp and tp % model.num_kv_heads:
            reason = f"tp {tp} neither divides nor is a multiple of the {model.num_kv_heads} key-value heads of {model.name}"
            return Fit(fits=False, reason=reason)
        tokens, least = self.kv_tokens(tp), min(_LEAST_KV_TOKENS, model.max_positions)
        if tokens < least:
            have = tp * device.memory_bytes * self.utilization
            reason = (
                f"{model.name} needs {model.weight_bytes / 1e9:.1f} GB of weights and {tp} x "
                f"{device.engine_workspace_bytes / 1e9:.1f} GB of workspace; tp {tp} on {device.name} has {have / 1e9:.1f} GB, "
                f"which leaves {tokens} tokens of KV cache, less than {least}"
            )
            return Fit(fits=False, reason=reason)
        return Fit(fits=True)

    def decode_step_s(self, tp: int, batch: Number, context: Number) -> Array:
        """Sum of kernels of one decode step: `batch` sequences of `context` tokens each; arrays `[n]` broadcast.

        Never less than the step of one GPU over `tp`: where a kernel's table would say so, it shows its own error.
        """
        step = self._decode_kernels_s(tp, batch, context)
        return step if tp == 1 else np.maximum(step, self._decode_kernels_s(1, batch, context) / tp)

    def _decode_kernels_s(self, tp: int, batch: Number, context: Number) -> Array:
        model, kernels = self.model, self._kernels
        heads, groups = model.num_heads / tp, max(1.0, model.num_kv_heads / tp)
        batch = np.atleast_1d(np.asarray(batch, np.float64))
        layer = self._matrices_s(tp, batch) + self._small_kernels_s(tp, batch)
        layer = layer + kernels.decode_attention_s(batch, heads, groups, context)
        layer = layer + 2 * kernels.collective_s("all_reduce_graph", 2 * batch * model.hidden_size, tp)
        return model.num_layers * layer + self._head_s(tp, batch) + self.device.host_s + self.device.host_s_per_sequence * batch

    def prefill_pass_s(self, tp: int, tokens: Number, *, sequences: int = 1) -> Array:
        """Sum of kernels of one prefill pass over `sequences` fresh prompts of `tokens` each."""
        model, kernels = self.model, self._kernels
        per_sequence = np.atleast_1d(np.asarray(tokens, np.float64))
        every = sequences * per_sequence
        layer = self._matrices_s(tp, every) + self._small_kernels_s(tp, every)
        heads, groups = model.num_heads / tp, max(1.0, model.num_kv_heads / tp)
        layer = layer + kernels.prefill_attention_s(sequences, heads, groups, per_sequence)
        layer = layer + 2 * kernels.collective_s("all_reduce_graph", 2 * every * model.hidden_size, tp)
        return model.num_layers * layer + self._head_s(tp, np.full_like(every, sequences)) + self.device.host_s

    def _powers(self) -> tuple[int, ...]:
        return tuple(2**exponent for exponent in range(self.device.gpus_per_node.bit_length()))

    @property
    def _ffn_size(self) -> int:
        return self.model.expert_ffn_size if self.model.is_moe else self.model.ffn_size

    def _matrices_s(self, tp: int, tokens: Array) -> Array:
        """Projections and feed-forward of one layer."""
        model, kernels, dtype = self.model, self._kernels, self.model.weight_dtype
        kv_width = 2 * max(model.kv_size / tp, model.head_dim)
        total = kernels.gemm_s(tokens, model.attention_size / tp + kv_width, model.hidden_size, dtype)
        total = total + kernels.gemm_s(tokens, model.hidden_size, model.attention_size / tp, dtype)
        if model.is_moe:
            router = kernels.gemm_s(tokens, model.num_experts, model.hidden_size)
            return total + router + kernels.moe_s(tokens, model, tp=tp)
        width = model.ffn_size / tp
        total = total + kernels.gemm_s(tokens, (2 if model.gated else 1) * width, model.hidden_size, dtype)
        return total + kernels.gemm_s(tokens, model.hidden_size, width, dtype)

    def _small_kernels_s(self, tp: int, tokens: Array) -> Array:
        """Two norms with the residual, rope, cache write, activation, and the query-key norm; FP8 adds four quantisations."""
        model, kernels = self.model, self._kernels
        wide = 2 * tokens
        queries = (model.attention_size + 2 * model.kv_size) / tp
        ffn = (model.experts_per_token * model.expert_ffn_size if model.is_moe else model.ffn_size) / tp
        total = 2 * kernels.elementwise_s(wide * 4 * model.hidden_size)
        total = total + kernels.elementwise_s(wide * 2 * queries) + kernels.elementwise_s(wide * queries)
        total = total + kernels.elementwise_s(wide * (3 if model.gated else 2) * ffn)
        if model.qk_norm:
            total = total + kernels.elementwise_s(wide * 2 * queries)
        if model.weight_dtype == "fp8":
            total = total + 2 * kernels.elementwise_s(1.5 * wide * model.hidden_size)
            total = total + kernels.elementwise_s(1.5 * wide * queries) + kernels.elementwise_s(1.5 * wide * ffn)
        return total

    def _head_s(self, tp: int, rows: Array) -> Array:
        """Embedding with its all-reduce, output head, and the gather of the logits."""
        model, kernels = self.model, self._kernels
        head = kernels.gemm_s(rows, model.vocab_size / tp, model.hidden_size)
        gather = kernels.collective_s("all_gather", 2 * rows * model.vocab_size, tp)
        return head + gather + kernels.collective_s("all_reduce_graph", 2 * rows * model.hidden_size, tp)

    def _attention_s_per_pair(self, tp: int) -> float:
        """Prefill attention of all layers at its long-context rate; short prompts barely notice it."""
        heads, groups = self.model.num_heads / tp, max(1.0, self.model.num_kv_heads / tp)
        one = self._kernels.prefill_attention_s(1.0, heads, groups, _LONG_PROMPT)
        return self.model.num_layers * float(np.atleast_1d(one)[0]) / (_LONG_PROMPT**2 / 2)

    def _fitted_law(self, tp: int) -> EngineLaw:
        room = self.kv_tokens(tp) or _USUAL_KV_TOKENS
        batch, context = (axis.ravel() for axis in np.meshgrid(_BATCHES, _CONTEXTS))
        fitting = batch * context <= max(room, _CONTEXTS[0])
        batch, context = batch[fitting].astype(np.float64), context[fitting].astype(np.float64)
        decode, error = nonnegative_fit(
            np.stack([np.ones_like(batch), batch, batch * context], axis=1), self.decode_step_s(tp, batch, context)
        )
        tokens = np.asarray(_PREFILLS, np.float64)
        per_pair = self._attention_s_per_pair(tp)
        linear = np.maximum(self.prefill_pass_s(tp, tokens) - per_pair * tokens**2 / 2, self.device.host_s)
        prefill, _ = nonnegative_fit(np.stack([np.ones_like(tokens), tokens], axis=1), linear)
        if tp > 1:
            alone = self._law(1)
            floor = (alone.a_s / tp, alone.b_s / tp, alone.c_s / tp)
            decode = [max(value, least) for value, least in zip(decode, floor, strict=True)]
        return EngineLaw(
            a_s=decode[0],
            b_s=decode[1],
            c_s=decode[2],
            prefill_a_s=prefill[0],
            prefill_b_s_per_token=prefill[1],
            prefill_c_s_per_token2=per_pair,
            kv_tokens=self.kv_tokens(tp),
            fit_error=error,
        )
