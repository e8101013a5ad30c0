"""Weight publication as seen by the fleet: one order, every engine, a deadline each."""

import asyncio
import math
from dataclasses import dataclass

from ray.exceptions import RayActorError, RayTaskError

from libra_core.config.training import PublicationConfig
from libra_core.engines.weight_source import WeightSource
from libra_core.errors import CheckpointError, EngineLostError, NumericsError
from libra_core.runtime.rollout.fleet import EngineMember, first_line
from libra_core.types.ids import EngineId, PolicyVersion
from libra_core.types.reports import EnginePublication


@dataclass(frozen=True, slots=True, kw_only=True)
class PublicationOrder:
    """Which weights, and where an engine reads them."""

    version: PolicyVersion
    source: WeightSource


@dataclass(frozen=True, slots=True, kw_only=True)
class Published:
    """The fleet's answer to an order."""

    engines: tuple[EnginePublication, ...]
    """Those that took the weights."""
    scores: dict[EngineId, tuple[float, ...]]
    """Of the canary; empty where none was asked for."""
    seconds: float
    """From the order to the last answer."""


class NotStagedError(EngineLostError):
    """The engine could not get the weights, and serves on with those before."""


async def load_weights(member: EngineMember, order: PublicationOrder, config: PublicationConfig) -> EnginePublication:
    """Swap one engine's weights.

    Raises:
        NotStagedError: they did not reach it.
        EngineLostError: it died, failed or passed the deadline.
    """
    try:
        async with asyncio.timeout(config.deadline_s):
            return await member.handle.update_weights.remote(order.source, order.version, config.in_flight, config.recompute_kv)
    except (RayActorError, RayTaskError) as error:
        reason = f"failed to load version {order.version}: {first_line(error)}"
        if isinstance(getattr(error, "cause", None), CheckpointError):
            raise NotStagedError(f"{member.engine_id} {reason}") from error
    except TimeoutError:
        reason = f"did not load version {order.version} within publication.deadline_s = {config.deadline_s:.0f} s"
    raise EngineLostError(f"{member.engine_id} {reason}")


def worst_mismatch(
    scores: dict[EngineId, tuple[float, ...]], expected: tuple[float, ...], tolerance: float, version: PolicyVersion
) -> float:
    """Largest absolute log-prob difference over engines and positions; raises `NumericsError` above the tolerance or on nan."""
    errors = {engine_id: max(abs(a - b) for a, b in zip(values, expected, strict=True)) for engine_id, values in scores.items()}
    engine_id, worst = max(errors.items(), key=lambda item: math.inf if math.isnan(item[1]) else item[1])
    if not worst <= tolerance:
        raise NumericsError(
            f"after publishing version {version}, {engine_id} and the trainer differ by {worst:.2e} in a log-prob of the canary "
            f"prompt, above publication.canary_tolerance = {tolerance:.0e}: the engine does not run the trainer's weights"
        )
    return worst
