"""New weights from the trainer to the engines. A prior: a run measures its own."""

from collections.abc import Callable, Mapping

from libra_core.costs.facts import DeviceProfile, ModelFacts
from libra_core.costs.layouts import TrainingShape
from libra_core.costs.memory import WEIGHT_BYTES

PUBLICATION_FIXED_S = 2.0
"""Pause, resume, prefix-cache reset, canary. The simulations of docs/measurements.md count 4 s in all for 14B."""
PublicationTime = Callable[[TrainingShape, Mapping[int, int]], float]
"""Seconds from a trainer to `{tp: number of engines}`."""


def publication_time(device: DeviceProfile, model: ModelFacts) -> PublicationTime:
    """Each tensor is gathered over the trainer's shards on NVLink, then broadcast; a node's copy enters over the links of the
    sending ranks, and each engine keeps its slice."""

    def seconds(train: TrainingShape, engines: Mapping[int, int]) -> float:
        nodes = -(-sum(tp * count for tp, count in engines.items()) // device.gpus_per_node)
        if not nodes:
            return 0.0
        volume = WEIGHT_BYTES * model.num_parameters
        senders = min(train.tp * train.pp, device.gpus_per_node)
        gather = volume / device.intra.bytes_per_s if train.tp * train.pp > 1 else 0.0
        across = volume / (senders * device.inter.bytes_per_s)
        spread = volume / (min(engines) * device.intra.bytes_per_s)
        return PUBLICATION_FIXED_S + gather + across + spread

    return seconds
