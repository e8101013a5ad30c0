"""Where actors go: one placement group per tensor-parallel group, on GPUs or, on CPU hosts, on counted slots."""

from dataclasses import dataclass
from typing import Any, Literal

import ray
from ray.util.placement_group import PlacementGroup, placement_group, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from libra_core.config import LibraConfig
from libra_core.errors import ResourceError

GPU_SLOT = "gpu_slot"
"""Custom resource that stands for a GPU on CPU hosts."""

DeviceKind = Literal["cpu", "gpu"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """A reserved set of devices inside one node."""

    group: PlacementGroup
    bundle: dict[str, float]

    def actor_options(self, bundle_index: int, env: dict[str, str]) -> dict[str, Any]:
        """Ray options for an actor that takes one bundle."""
        devices = dict(self.bundle)
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
