"""Where the actors of a run are, asked once of each: no actor moves, and a trainer in a step would answer late."""

import asyncio
import logging
from collections.abc import Mapping, Sequence
from typing import Any

import ray
from ray.exceptions import RayError

from libra_core.errors import LibraError
from libra_core.runtime.base.rpc import reply
from libra_core.runtime.rollout.fleet import ActorHandle, first_line
from libra_core.runtime.base.placement import Whereabouts, placement_faults

logger = logging.getLogger(__name__)

_LOOK_S = 30.0


class ActorPlaces:
    """Owned by the controller's event loop."""

    def __init__(self) -> None:
        self._found: dict[Any, Whereabouts] = {}

    def node_of(self, actor: ActorHandle) -> str:
        """Empty while nobody has asked it."""
        return self._found[actor].node if actor in self._found else ""

    def largest_node(self, resource: str) -> int:
        """Devices of the node that has most, in use or not."""
        return int(max((node["Resources"].get(resource, 0.0) for node in ray.nodes()), default=0.0))

    async def faults(self, groups: Mapping[str, Sequence[ActorHandle]], resource: str) -> list[str]:
        """Against what a plan says of tensor-parallel groups and of each node's devices; see `placement_faults`."""
        everyone = list(dict.fromkeys(actor for actors in groups.values() for actor in actors))
        places = dict(zip(everyone, await asyncio.gather(*(self._where(actor) for actor in everyone)), strict=True))
        found = {name: [place for actor in actors if (place := places[actor]) is not None] for name, actors in groups.items()}
        slots = {node["NodeID"]: node["Resources"].get(resource, 0.0) for node in ray.nodes()}
        return placement_faults(found, slots_by_node=slots)

    async def _where(self, actor: ActorHandle) -> Whereabouts | None:
        """None for an actor that died: whoever replaces it is looked at then."""
        try:
            if actor not in self._found:
                self._found[actor] = await reply(
                    "the cluster controller", "an actor's place", actor.whereabouts.remote(), _LOOK_S
                )
        except (RayError, LibraError) as error:
            logger.info("an actor does not say where it is: %s", first_line(error))
        return self._found.get(actor)
