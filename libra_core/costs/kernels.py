"""Time of one kernel call on a device, from its curves. The fit and the evaluation share these definitions of flops and bytes."""

from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from libra_core.costs.curves import KernelCurve, Rates
from libra_core.costs.facts import DeviceProfile, ModelFacts

Array = NDArray[np.float64]
Number = Array | float
FP8_SPEEDUP = 2.0
"""Dense FP8 over BF16 peak of Hopper (datasheet)."""


def gemm_work(m: Number, n: Number, k: Number, element_bytes: float = 2.0) -> tuple[Array, Array]:
    """Flops and bytes of `[m, k] @ [k, n]`; the result leaves in BF16."""
    m, n, k = np.asarray(m, np.float64), np.asarray(n, np.float64), np.asarray(k, np.float64)
    return 2 * m * n * k, (m * k + k * n) * element_bytes + 2 * m * n


def decode_attention_work(batch: Number, heads: Number, kv_heads: Number, context: Number) -> tuple[Array, Array]:
    """One query per sequence over `context` keys and values in BF16, head_dim 128."""
    batch, context = np.asarray(batch, np.float64), np.asarray(context, np.float64)
    return 4 * batch * context * heads * 128, 4 * batch * context * kv_heads * 128


def prefill_attention_work(batch: Number, heads: Number, kv_heads: Number, tokens: Number) -> tuple[Array, Array]:
    """Causal attention of `tokens` new tokens on themselves, head_dim 128."""
    batch, tokens = np.asarray(batch, np.float64), np.asarray(tokens, np.float64)
    return 2 * batch * tokens**2 * heads * 128, 4 * batch * tokens * (heads + kv_heads) * 128


def moe_work(
    tokens: Number, hidden: Number, ffn: Number, top_k: Number, experts: Number, *, local_share: Number = 1.0
) -> tuple[Array, Array]:
    """Gated expert feed-forward; BF16 bytes are those of the experts that `tokens` touch in expectation under uniform routing.

    Args:
        local_share: share of the experts this GPU holds (1/ep).
    """
    tokens, experts = np.asarray(tokens, np.float64), np.asarray(experts, np.float64)
    touched = experts * local_share * (1 - (1 - np.asarray(top_k) / experts) ** tokens)
    assigned = tokens * top_k * local_share
    flops = 6 * assigned * hidden * ffn
    return flops, 6 * touched * hidden * ffn + 2 * assigned * (2 * np.asarray(hidden) + 3 * np.asarray(ffn))


def bus_bytes(operation: str, message_bytes: Number, degree: Number) -> Array:
    """Bytes that each GPU sends over its link for a ring of `degree`; the message is the full tensor."""
    share = (np.asarray(degree, np.float64) - 1) / np.asarray(degree, np.float64)
    return np.asarray(message_bytes, np.float64) * share * (2 if operation.startswith("all_reduce") else 1)


def grounding_of(device: DeviceProfile, unused: str = "") -> str:
    """Of what is summed from kernels; `unused` says why no calibration is in its place."""
    return f"kernels of {device.name}, {device.grounding}" + (f"; {unused}" if unused else "")


class Kernels:
    """Kernel times of one device. Pure; instances only hold the profile."""

    def __init__(self, device: DeviceProfile) -> None:
        self.device = device

    @cached_property
    def _compute(self) -> Rates:
        return Rates(flops=self.device.peak_flops, bytes_per_s=self.device.memory_bytes_per_s)

    @cached_property
    def _compute_fp8(self) -> Rates:
        return Rates(flops=FP8_SPEEDUP * self.device.peak_flops, bytes_per_s=self.device.memory_bytes_per_s)

    def gemm_s(self, m: Number, n: Number, k: Number, dtype: str = "bf16") -> Array:
        """`[m, k] @ [k, n]`."""
        if dtype == "fp8" and "gemm_fp8" in self.device.curves:
            flops, moved = gemm_work(m, n, k, 1.0)
            return self.device.curves["gemm_fp8"].seconds(flops=flops, moved=moved, rates=self._compute_fp8, at=(m, n, k))
        flops, moved = gemm_work(m, n, k)
        return self.device.curves["gemm_bf16"].seconds(flops=flops, moved=moved, rates=self._compute, at=(m, n, k))

    def decode_attention_s(self, batch: Number, heads: float, kv_heads: float, context: Number) -> Array:
        """One layer; `batch` sequences that each hold `context` tokens."""
        flops, moved = decode_attention_work(batch, heads, kv_heads, context)
        at = (np.asarray(batch) * kv_heads, context, heads / kv_heads)
        return self.device.curves["decode_attention"].seconds(flops=flops, moved=moved, rates=self._compute, at=at)

    def prefill_attention_s(self, batch: Number, heads: float, kv_heads: float, tokens: Number) -> Array:
        flops, moved = prefill_attention_work(batch, heads, kv_heads, tokens)
        at = (np.asarray(batch) * heads, tokens)
        return self.device.curves["prefill_attention"].seconds(flops=flops, moved=moved, rates=self._compute, at=at)

    def moe_s(self, tokens: Number, model: ModelFacts, *, tp: int, ep: int = 1) -> Array:
        """Routed experts of one layer on one GPU."""
        ffn = model.expert_ffn_size / tp
        flops, moved = moe_work(tokens, model.hidden_size, ffn, model.experts_per_token, model.num_experts, local_share=1.0 / ep)
        curve, rates = self.device.curves["moe"], self._compute
        if model.weight_dtype == "fp8":
            moved, rates = moved / 2, self._compute_fp8
        assigned = np.asarray(tokens, np.float64) * model.experts_per_token / model.num_experts
        return curve.seconds(flops=flops, moved=moved, rates=rates, at=(np.maximum(assigned, 1e-3), ffn, model.num_experts / ep))

    def elementwise_s(self, moved: Number) -> Array:
        """One memory-bound kernel; 0.8 of the bandwidth, as aiconfigurator's device files state for both A100 and H100."""
        return self.device.elementwise_launch_s + np.asarray(moved, np.float64) / (0.8 * self.device.memory_bytes_per_s)

    def collective_s(self, operation: str, message_bytes: Number, degree: int) -> Array:
        """Inside a node, over NVLink; `operation` names a curve."""
        if degree == 1:
            return np.zeros_like(np.asarray(message_bytes, np.float64))
        curve: KernelCurve = self.device.curves[operation]
        rates = Rates(flops=1.0, bytes_per_s=self.device.intra.bytes_per_s)
        sent = bus_bytes(operation, message_bytes, degree)
        at = (np.maximum(np.asarray(message_bytes, np.float64), 1.0), float(degree))
        return curve.seconds(flops=0.0, moved=sent, rates=rates, at=at)

    def collective_across_nodes_s(self, operation: str, message_bytes: Number, degree: int, *, links: int = 1) -> Array:
        """Ring over nodes: 2(d-1) or (d-1) hops, `links` members per node share the traffic over as many links."""
        if degree == 1:
            return np.zeros_like(np.asarray(message_bytes, np.float64))
        hops = (degree - 1) * (2 if operation.startswith("all_reduce") else 1)
        link = self.device.inter
        return hops * link.latency_s + bus_bytes(operation, message_bytes, degree) / (link.bytes_per_s * links)
