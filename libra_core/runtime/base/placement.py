"""Where actors go: one placement group per tensor-parallel group, on GPUs or, on CPU hosts, on counted slots."""

import asyncio
import logging
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import ray
from ray.exceptions import RayError
from ray.util.placement_group import PlacementGroup, placement_group, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from libra_core.config import LibraConfig
from libra_core.errors import LibraError, ResourceError
from libra_core.runtime.base.rpc import ActorHandle, first_line, reply

logger = logging.getLogger(__name__)

GPU_SLOT = "gpu_slot"
"""Custom resource that stands for a GPU on CPU hosts."""

DeviceKind = Literal["cpu", "gpu"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """A reserved set of devices inside one node."""

    group: PlacementGroup
    bundle: dict[str, float]

    def actor_options(self, bundle_index: int, env: dict[str, str], *, devices_taken: int | None = None) -> dict[str, Any]:
        """Ray options for an actor that takes one bundle, or only so many devices of it."""
        devices = dict(self.bundle)
        if devices_taken is not None:
            devices = dict.fromkeys(self.bundle, float(devices_taken)) if devices_taken else {}
        gpus = devices.pop("GPU", 0)
        return {
            "num_cpus": 0,
            "num_gpus": gpus,
            "resources": devices,
            "runtime_env": {"env_vars": env},
            "scheduling_strategy": PlacementGroupSchedulingStrategy(self.group, placement_group_bundle_index=bundle_index),
        }

    def release(self) -> None:
        remove_placement_group(self.group)


@dataclass(frozen=True, slots=True, kw_only=True)
class Whereabouts:
    """What Ray gave an actor."""

    node: str
    devices: tuple[str, ...]
    """GPU ids; slots of a CPU host have none."""
    slots: float
    """Devices or slots that it holds."""


def whereabouts(lent: Whereabouts | None = None) -> Whereabouts:
    """Of the calling actor; of one that borrows its devices Ray knows the node alone."""
    context = ray.get_runtime_context()
    if lent is not None:
        return replace(lent, node=context.get_node_id())
    held: dict[str, Any] = context.get_assigned_resources()
    gpus = tuple(str(gpu) for gpu in context.get_accelerator_ids().get("GPU", ()))
    return Whereabouts(node=context.get_node_id(), devices=gpus, slots=float(held.get("GPU", 0) or held.get(GPU_SLOT, 0)))


def one_of(lender: Whereabouts, index: int) -> Whereabouts:
    """One device of an actor that sleeps; on a CPU host one slot."""
    return replace(lender, devices=lender.devices[index : index + 1], slots=1.0)


def borrower_environment(lent: Whereabouts) -> dict[str, str]:
    """Ray counts these devices as the sleeper's, and so must neither give them away nor hide them from the borrower."""
    if not lent.devices:
        return {}
    return {"CUDA_VISIBLE_DEVICES": ",".join(lent.devices), "RAY_EXPERIMENTAL_NOSET_CUDA_VISIBLE_DEVICES": "1"}


def placement_faults(groups: Mapping[str, Sequence[Whereabouts]], *, slots_by_node: Mapping[str, float]) -> list[str]:
    """What is wrong with where the actors are, as sentences: a tensor-parallel group over several nodes, a GPU used twice, more
    slots used than a node has. `groups` by name of the tensor-parallel group."""
    faults = [
        f"{name} spans nodes {', '.join(sorted({place.node for place in places}))}"
        for name, places in groups.items()
        if len({place.node for place in places}) > 1
    ]
    users: dict[tuple[str, str], list[str]] = {}
    used: dict[str, float] = {}
    for name, places in groups.items():
        for place in places:
            used[place.node] = used.get(place.node, 0.0) + place.slots
            for device in place.devices:
                users.setdefault((place.node, device), []).append(name)
    faults += [
        f"GPU {device} of node {node} is used by {', '.join(names)}" for (node, device), names in users.items() if len(names) > 1
    ]
    faults += [
        f"node {node} has {slots_by_node.get(node, 0.0):.0f} devices, but actors hold {count:.0f}"
        for node, count in used.items()
        if count > slots_by_node.get(node, 0.0)
    ]
    return faults


def free_port(host: str) -> tuple[str, int]:
    """An address of this machine with a port that nobody listens on."""
    with socket.socket() as probe:
        probe.bind((host, 0))
        return host, probe.getsockname()[1]


def device_kind(config: LibraConfig) -> DeviceKind:
    """What the actors of a run hold; a simulated run has no actors."""
    kind = config.backend.kind
    assert kind != "simulated", "a simulated run reserves no devices"
    return kind


async def reserve(kind: DeviceKind, *, bundles: int, devices_per_bundle: int, name: str, deadline_s: float) -> Placement:
    """Reserve bundles of devices in one node (STRICT_PACK).

    Raises:
        ResourceError: when the cluster has no node with so many free devices within the deadline.
    """
    import asyncio

    resource = "GPU" if kind == "gpu" else GPU_SLOT
    bundle = {resource: float(devices_per_bundle)}
    group = placement_group([bundle] * bundles, strategy="STRICT_PACK", name=name)
    try:
        await asyncio.wait_for(_ready(group), deadline_s)
    except TimeoutError:
        remove_placement_group(group)
        wanted = bundles * devices_per_bundle
        free = ray.available_resources().get(resource, 0.0)
        raise ResourceError(
            f"{name} needs {wanted} {resource} in one node, and none became free within {deadline_s:.0f} s "
            f"({free:.0f} free in the whole cluster); use fewer or smaller engines, or a larger cluster"
        ) from None
    return Placement(group=group, bundle=bundle)


async def _ready(group: PlacementGroup) -> None:
    await group.ready()


_ANSWER_S = 30.0


class ActorPlaces:
    """Owned by the controller's event loop."""

    def __init__(self) -> None:
        self._places: dict[Any, Whereabouts] = {}

    def node_of(self, actor: ActorHandle) -> str:
        """Empty while nobody has asked it."""
        return self._places[actor].node if actor in self._places else ""

    def largest_node(self, resource: str) -> int:
        """Devices of the node that has most, in use or not."""
        return int(max((node["Resources"].get(resource, 0.0) for node in ray.nodes()), default=0.0))

    async def faults(self, groups: Mapping[str, Sequence[ActorHandle]], resource: str) -> list[str]:
        """Against what a plan says of tensor-parallel groups and of each node's devices; see `placement_faults`."""
        everyone = list(dict.fromkeys(actor for actors in groups.values() for actor in actors))
        places = dict(zip(everyone, await asyncio.gather(*(self._where(actor) for actor in everyone)), strict=True))
        faulty = {name: [place for actor in actors if (place := places[actor]) is not None] for name, actors in groups.items()}
        slots = {node["NodeID"]: node["Resources"].get(resource, 0.0) for node in ray.nodes()}
        return placement_faults(faulty, slots_by_node=slots)

    async def _where(self, actor: ActorHandle) -> Whereabouts | None:
        """None for an actor that died: whoever replaces it is looked at then."""
        try:
            if actor not in self._places:
                self._places[actor] = await reply(
                    "the cluster controller", "an actor's place", actor.whereabouts.remote(), _ANSWER_S
                )
        except (RayError, LibraError) as error:
            logger.info("an actor does not say where it is: %s", first_line(error))
        return self._places.get(actor)
