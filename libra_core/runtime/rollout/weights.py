"""Weight publication as seen by the fleet: one order, every engine, a deadline each."""

import asyncio
import itertools
import math
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any

from ray.exceptions import RayActorError, RayTaskError

from libra_core.config import LibraConfig
from libra_core.config.training import PublicationConfig
from libra_core.engines.weight_source import WeightSource
from libra_core.errors import CheckpointError, DeadlineError, EngineLostError, NumericsError, ResourceError
from libra_core.runtime.base.rpc import GRACE_S, ActorHandle, first_line, reply
from libra_core.runtime.rollout.fleet import EngineMember
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


Fail = Callable[[EngineId, str], None]
"""Tell of an engine that died, hangs, or did not take weights, and why."""
PING_S = 60.0
"""An engine answers between two of its steps."""
_BROADCAST = "the broadcast of weights"


class BroadcastRound:
    """Owned by the coordinator's event loop. An engine that dies breaks the group for all; another one is then formed."""

    def __init__(self, fail: Fail) -> None:
        self._fail = fail
        self._whole: asyncio.Future[bool] | None = None
        self.members: tuple[EngineMember, ...] = ()

    async def form(self, members: Sequence[EngineMember]) -> dict[EngineId, int]:
        """Those that answer, and their degrees in the order of their ranks; who comes later waits for another round."""
        pings = (
            reply(_BROADCAST, f"a sign of life of {member.engine_id}", member.handle.ping.remote(), PING_S) for member in members
        )
        answers = await asyncio.gather(*pings, return_exceptions=True)
        self.members = tuple(self._kept(members, answers))
        self._whole = asyncio.get_running_loop().create_future()
        return {member.engine_id: member.tp for member in self.members}

    async def open(self, host: str, port: int, world_size: int, timeout_s: float) -> None:
        """Every engine joins the `world_size` processes; trainer rank 0 is rank 0.

        Raises:
            ResourceError: one is gone or hangs; the group is of no use.
        """
        offsets = itertools.accumulate((member.tp for member in self.members), initial=1)
        joins = (
            reply(
                _BROADCAST,
                f"{member.engine_id} to join its group",
                member.handle.open_transport.remote("broadcast", host, port, offset, world_size, timeout_s),
                2 * timeout_s + GRACE_S,
            )
            for member, offset in zip(self.members, offsets, strict=False)
        )
        answers = await asyncio.gather(*joins, return_exceptions=True)
        failures = [first_line(answer) for answer in answers if isinstance(answer, BaseException)]
        if failures:
            raise ResourceError(f"{len(failures)} of {len(self.members)} engines did not join a broadcast: {failures[0]}")

    def end(self, *, whole: bool) -> None:
        if self._whole is not None and not self._whole.done():
            self._whole.set_result(whole)

    def verdict(self) -> "asyncio.Future[bool]":
        """Of this round, also when another one is formed meanwhile: whether the trainer has sent all of it."""
        assert self._whole is not None, "a round is formed before it is judged"
        return self._whole

    def _kept(self, members: Sequence[EngineMember], answers: Sequence[object]) -> list[EngineMember]:
        kept: list[EngineMember] = []
        for member, answer in zip(members, answers, strict=True):
            if not isinstance(answer, BaseException):
                kept.append(member)
                continue
            self._fail(member.engine_id, f"{member.engine_id} cannot take part: {first_line(answer)}")
        return kept


Call = Callable[[ActorHandle], Awaitable[Any]]
GONE = (DeadlineError, ResourceError, EngineLostError)
"""What a call to an engine raises that hangs, died or is out of service."""
_WHO = "the rollout coordinator"


class EngineCalls:
    """Owned by the coordinator's event loop."""

    def __init__(self, fail: Fail) -> None:
        self._fail = fail

    async def each(self, members: Sequence[EngineMember], what: str, call: Call, deadline_s: float) -> dict[EngineId, Any]:
        """Answers of those that gave one; all are asked at once. Raises what an engine raised that goes on."""
        answers = await asyncio.gather(*(self._one(member, what, call, deadline_s) for member in members), return_exceptions=True)
        given: dict[EngineId, Any] = {}
        for member, answer in zip(members, answers, strict=True):
            if isinstance(answer, GONE):
                self._fail(member.engine_id, f"{member.engine_id} could not {what}: {answer}")
            elif isinstance(answer, BaseException):
                raise answer
            else:
                given[member.engine_id] = answer
        return given

    async def first(self, members: Sequence[EngineMember], what: str, call: Call, deadline_s: float) -> Any:
        """The answer of the first that gives one; None when none does."""
        for member in members:
            given = await self.each([member], what, call, deadline_s)
            if given:
                return given[member.engine_id]
        return None

    async def _one(self, member: EngineMember, what: str, call: Call, deadline_s: float) -> Any:
        return await reply(_WHO, f"{member.engine_id} to {what}", call(member.handle), deadline_s)


class WeightLoads:
    """Owned by the coordinator's event loop; one order at a time."""

    def __init__(self, config: LibraConfig, record: Callable[[str, str, float, float], None], fail: Fail) -> None:
        self._config, self._record, self._fail = config, record, fail
        self._behind: list[tuple[EngineMember, EngineLostError]] = []
        """Engines that a broadcast did not reach."""

    async def load_all(self, members: Sequence[EngineMember], order: PublicationOrder) -> list[EnginePublication | None]:
        """A broadcast needs all engines at once, whatever the configured order."""
        if self._config.publication.order == "rolling" and self._config.weights_by_file:
            return [await self.load(member, order) for member in members]
        return list(await asyncio.gather(*(self.load(member, order) for member in members)))

    async def load(self, member: EngineMember, order: PublicationOrder) -> EnginePublication | None:
        """None where it failed; that is told now, or when the broadcast is judged."""
        start_s = time.time()
        try:
            result = await load_weights(member, order, self._config.publication)
        except EngineLostError as error:
            if isinstance(error, NotStagedError) and not self._config.weights_by_file:
                self._behind.append((member, error))
            else:
                self._fail(member.engine_id, str(error))
            return None
        self._record(f"weights v{order.version}", member.engine_id, start_s, time.time())
        return result

    async def judge(self, whole: "asyncio.Future[bool]") -> None:
        """One that a whole broadcast did not reach is at fault; where it was not whole, engines serve on until the repeat."""
        behind, self._behind = self._behind, []
        done, _ = await asyncio.wait([whole], timeout=self._config.publication.deadline_s if behind else 0)
        if not done or whole.result():  # unbounded: it is done
            for member, error in behind:
                self._fail(member.engine_id, str(error))
