"""Moving weights and state: publication to the engines, start of engines, join of a replica, transfer of a KV cache.

These are priors. The runtime measures each of them and the planner uses its rolling means as soon as there are any.
"""

from collections.abc import Mapping

from libra_core.costs.facts import DeviceProfile, ModelFacts
from libra_core.costs.layouts import TrainingShape
from libra_core.costs.memory import OPTIMIZER_BYTES, WEIGHT_BYTES, stage_parameters

PUBLICATION_FIXED_S = 2.0
"""Pause, resume, prefix-cache reset, canary. The simulations of docs/measurements.md count 4 s in all for 14B."""
WORLD_START_S = 20.0
"""Process start and NCCL rendezvous of a training world."""


class TransitionCosts:
    """One model on one kind of device."""

    def __init__(self, device: DeviceProfile, model: ModelFacts) -> None:
        self.device = device
        self.model = model

    def publication_s(self, train: TrainingShape, engines: Mapping[int, int]) -> float:
        """New weights from the trainer to `{tp: number of engines}`.

        Each tensor is gathered over the trainer's shards on NVLink, then broadcast; a node's copy enters over the links of the
        sending ranks, and each engine keeps its slice.
        """
        nodes = -(-sum(tp * count for tp, count in engines.items()) // self.device.gpus_per_node)
        if not nodes:
            return 0.0
        volume = WEIGHT_BYTES * self.model.num_parameters
        senders = min(train.tp * train.pp, self.device.gpus_per_node)
        gather = volume / self.device.intra.bytes_per_s if train.tp * train.pp > 1 else 0.0
        across = volume / (senders * self.device.inter.bytes_per_s)
        least = min(engines)
        spread = volume / (least * self.device.intra.bytes_per_s)
        return PUBLICATION_FIXED_S + gather + across + spread

    def engine_start_s(self, tp: int) -> float:
        """Process start, weights, memory profiling, graph capture."""
        return self.device.engine_boot_s + self.model.weight_bytes / tp / self.device.loading_bytes_per_s

    def trainer_start_s(self, train: TrainingShape) -> float:
        """Processes, rendezvous, weights and optimizer state from a checkpoint."""
        held = stage_parameters(self.model, train, first=True, last=train.pp == 1).total
        state = held * (WEIGHT_BYTES + OPTIMIZER_BYTES / (train.cp * train.dp))
        return WORLD_START_S + state / self.device.loading_bytes_per_s

    def replica_join_s(self, train: TrainingShape) -> float:
        """A hybrid replica starts its world and receives weights and whole optimizer state of its shards between nodes."""
        held = stage_parameters(self.model, train, first=True, last=train.pp == 1).total
        return WORLD_START_S + held * (WEIGHT_BYTES + OPTIMIZER_BYTES) / self.device.inter.bytes_per_s

    def kv_move_s(self, context_tokens: float, *, same_node: bool) -> float:
        """KV cache of one trajectory from one engine to another."""
        link = self.device.intra if same_node else self.device.inter
        return link.latency_s + context_tokens * self.model.kv_bytes_per_token / link.bytes_per_s
