"""Time and memory of one optimizer step of a layout (docs/costs.md#formulas).

A micro-batch is the sum of its kernels: matrices at the measured rate for its tokens and its tp shard, attention by Σ L² at the
measured rate for the token-weighted length; the backward pass costs twice (attention 2.5 times) the forward, recomputation one
forward more. The pipeline is 1F1B; the group that crosses nodes pays the slow link. `training_efficiency` of the device is the
one factor that was fitted to whole training runs.
"""

from dataclasses import dataclass
from functools import lru_cache
from math import ceil, inf

import numpy as np

from libra_core.costs.facts import DeviceProfile, Fit, ModelFacts
from libra_core.costs.kernels import Kernels, grounding_of
from libra_core.costs.laws import TrainerLaw, TrainEstimate, TrainTimeParts
from libra_core.costs.layer_times import LayerTimes
from libra_core.costs.layouts import TrainingLoad, TrainingShape, shape_fit, stage_layers
from libra_core.costs.memory import GRADIENT_BYTES, OPTIMIZER_BYTES, WEIGHT_BYTES, TrainMemory, stage_parameters, train_memory

BACKWARD = 2.0
"""Matrix time of a backward pass over a forward one: gradients by input and by weight."""
ATTENTION_BACKWARD = 2.5
"""FlashAttention-2 (Dao 2023, section 3.1): five matrix products instead of two."""
_HIDDEN_SHARE = 0.8
"""Of the data-parallel traffic, at most this much hides behind the last backward pass (overlap_grad_reduce)."""
_HIDING_SHARE = 0.5
"""Of that backward pass, this much can hide traffic: buckets fill only as it proceeds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _MicroBatch:
    """One stage, forward and backward together unless named."""

    forward_s: float
    compute_s: float
    tp_s: float
    tp_forward_s: float
    ep_s: float
    ep_forward_s: float
    transfer_s: float

    @property
    def total_s(self) -> float:
        return self.compute_s + self.tp_s + self.ep_s + self.transfer_s


class TrainingCosts:
    """Training of one model on one kind of device. Pure; layer times are cached per tp and cp."""

    def __init__(
        self,
        device: DeviceProfile,
        model: ModelFacts,
        *,
        node_size: int | None = None,
        logprob_pass: bool = False,
        memory_utilization: float = 0.95,
    ) -> None:
        """`node_size` defaults to the device's GPUs per node; `logprob_pass` adds the pass that recomputes old log-probs."""
        self.device = device
        self.model = model
        self.node_size = node_size or device.gpus_per_node
        self.logprob_pass = logprob_pass
        self.memory_utilization = memory_utilization
        self._kernels = Kernels(device)
        self._layers = lru_cache(maxsize=None)(lambda tp, ep: LayerTimes(self._kernels, model, tp=tp, ep=ep))

    def law(self, unused: str = "") -> TrainerLaw:
        """`unused` says why no calibration is in its place."""
        source = grounding_of(self.device, unused)
        return TrainerLaw(shape_fit=self.shape_fit, evaluate=self.estimate, source=lambda _shape: source)

    def shape_fit(self, shape: TrainingShape) -> Fit:
        """Divisibility and topology alone; the reason is a sentence."""
        return shape_fit(self.model, shape, self.node_size)

    def memory(self, shape: TrainingShape, longest_tokens: float, num_micro_batches: int | None = None) -> TrainMemory:
        """Per GPU of the fullest stage; `num_micro_batches` defaults to a full pipeline."""
        in_flight = shape.pp if num_micro_batches is None else num_micro_batches
        return train_memory(self.model, shape, longest_tokens, in_flight, self.device.training_workspace_bytes)

    def estimate(self, shape: TrainingShape, load: TrainingLoad) -> TrainEstimate:
        """Time and memory of one step; `t_train_s` is infinite when the layout is impossible."""
        fit = self.shape_fit(shape)
        tokens = max(load.tokens / shape.dp, load.longest_tokens)
        micro_batches = max(1, ceil(tokens / max(shape.micro_batch_tokens, 1)))
        memory = self.memory(shape, load.longest_tokens, micro_batches)
        if fit.fits:
            fit = self._memory_fit(shape, memory, load.longest_tokens)
        bubble_share = (shape.pp - 1) / (micro_batches + shape.pp - 1)
        parts = self._parts(shape, load, tokens, micro_batches) if self.shape_fit(shape).fits else _IMPOSSIBLE
        total = parts.total_s
        return TrainEstimate(
            t_train_s=total if fit.fits else inf,
            parts=parts,
            memory=memory,
            num_micro_batches=micro_batches,
            bubble_share=bubble_share,
            tp_share=parts.tp_communication_s / total if total < inf else 0.0,
            fit=fit,
        )

    def _memory_fit(self, shape: TrainingShape, memory: TrainMemory, longest: float) -> Fit:
        room = self.device.memory_bytes * self.memory_utilization
        if memory.total_bytes <= room:
            return Fit(fits=True)
        state = memory.weights_bytes + memory.gradients_bytes + memory.optimizer_bytes
        reason = (
            f"tp {shape.tp} pp {shape.pp} dp {shape.dp} cp {shape.cp} ep {shape.ep} needs {memory.total_bytes / 1e9:.1f} "
            f"GB a GPU ({state / 1e9:.1f} state, {memory.activations_bytes / 1e9:.1f} activations, "
            f"{memory.logits_bytes / 1e9:.1f} logits at {max(longest, shape.micro_batch_tokens):.0f} tokens), "
            f"more than {room / 1e9:.1f} GB"
        )
        return Fit(fits=False, reason=reason)

    def _parts(self, shape: TrainingShape, load: TrainingLoad, tokens: float, micro_batches: int) -> TrainTimeParts:
        squared = max(load.squared_tokens / shape.dp, load.longest_tokens**2)
        one = self._micro_batch(shape, tokens / micro_batches, squared / micro_batches, load.weighted_length)
        backward = one.compute_s - one.forward_s
        forward = one.forward_s + one.tp_forward_s + one.ep_forward_s + one.transfer_s / 2
        slots = micro_batches + shape.pp - 1
        return TrainTimeParts(
            forward_backward_s=micro_batches * one.compute_s,
            tp_communication_s=micro_batches * one.tp_s,
            ep_communication_s=micro_batches * one.ep_s,
            bubble_s=(shape.pp - 1) * one.total_s,
            pp_transfer_s=micro_batches * one.transfer_s,
            dp_exposed_s=self._exposed_s(shape, backward),
            optimizer_s=self._optimizer_s(shape),
            logprob_s=slots * forward if self.logprob_pass else 0.0,
        )

    def _micro_batch(self, shape: TrainingShape, tokens: float, squared: float, length: float) -> _MicroBatch:
        layers, local = stage_layers(self.model, shape.pp), tokens / shape.cp
        times = self._layers(shape.tp, shape.ep)
        attention = layers * times.attention_s(squared / shape.cp, length)
        matrices = layers * times.layer_s(local)
        head = times.head_s(local)
        efficiency = self.device.training_efficiency
        forward = (matrices + attention + head) / efficiency
        backward = (BACKWARD * (matrices + head) + ATTENTION_BACKWARD * attention) / efficiency
        again = (matrices + attention) / efficiency if shape.recompute else 0.0
        passes = 3 if shape.recompute else 2
        tp_s = layers * times.tp_all_reduces_s(local)
        ep_s = layers * self._expert_exchange_s(shape, local)
        return _MicroBatch(
            forward_s=forward,
            compute_s=forward + backward + again,
            tp_s=passes * tp_s,
            tp_forward_s=tp_s,
            ep_s=passes * ep_s,
            ep_forward_s=ep_s,
            transfer_s=self._transfer_s(shape, local),
        )

    def _expert_exchange_s(self, shape: TrainingShape, local_tokens: float) -> float:
        """Two all-to-alls of one layer, forward."""
        if shape.ep == 1:
            return 0.0
        spread = shape.tp if shape.sequence_parallel else 1
        message = 2.0 * local_tokens / spread * self.model.experts_per_token * self.model.hidden_size
        if shape.ep <= self.node_size:
            return 2 * self._kernels.collective_s("all_to_all", message, _measured_degree(shape.ep)).item()
        leaving = message * (1 - self.node_size / shape.ep)
        return 2 * (self.device.inter.latency_s + leaving / self.device.inter.bytes_per_s)

    def _transfer_s(self, shape: TrainingShape, local_tokens: float) -> float:
        """Activations forward and gradients back to the neighbouring stage, one micro-batch."""
        if shape.pp == 1:
            return 0.0
        link = self.device.intra if shape.num_gpus <= self.node_size else self.device.inter
        spread = shape.tp if shape.sequence_parallel else 1
        return 2 * (link.latency_s + 2.0 * local_tokens / spread * self.model.hidden_size / link.bytes_per_s)

    def _exposed_s(self, shape: TrainingShape, backward_s: float) -> float:
        traffic = self.data_parallel_s(shape)
        return traffic - min(_HIDDEN_SHARE * traffic, _HIDING_SHARE * backward_s)

    def data_parallel_s(self, shape: TrainingShape) -> float:
        """Reduce-scatter of FP32 gradients and all-gather of BF16 weights over the cp·dp ranks, before overlap."""
        degree = shape.cp * shape.dp
        if degree == 1:
            return 0.0
        held = stage_parameters(self.model, shape, first=True, last=shape.pp == 1)
        total = self._ring_s(held.replicated, degree, shape.tp)
        expert_degree = shape.stage_gpus // shape.ep
        if held.experts and expert_degree > 1:
            total += self._ring_s(held.experts, expert_degree, shape.ep)
        return total

    def _ring_s(self, parameters: float, degree: int, stride: int) -> float:
        if degree * stride <= self.node_size:
            near = _measured_degree(degree)
            scatter = self._kernels.collective_s("reduce_scatter", GRADIENT_BYTES * parameters, near)
            return (scatter + self._kernels.collective_s("all_gather", WEIGHT_BYTES * parameters, near)).item()
        links = max(1, self.node_size // stride)
        far = self._kernels.collective_across_nodes_s
        scatter = far("reduce_scatter", GRADIENT_BYTES * parameters, degree, links=links)
        return float(scatter + far("all_gather", WEIGHT_BYTES * parameters, degree, links=links))

    def _optimizer_s(self, shape: TrainingShape) -> float:
        """Adam reads and writes its state, reads gradients, writes weights: memory-bound."""
        held = stage_parameters(self.model, shape, first=True, last=shape.pp == 1)
        own = held.replicated / (shape.cp * shape.dp) + held.experts * shape.ep / shape.stage_gpus
        if not shape.distributed_optimizer:
            own = held.total
        moved = own * (2 * OPTIMIZER_BYTES + GRADIENT_BYTES + WEIGHT_BYTES)
        return np.asarray(self._kernels.elementwise_s(moved)).item()


def _measured_degree(degree: int) -> int:
    """The power of two at or above; tables hold 2, 4 and 8 and keep their border beyond."""
    return 1 << (degree - 1).bit_length()


_IMPOSSIBLE = TrainTimeParts(forward_backward_s=inf)
