"""Loading the weights of one order onto engines, and what becomes of those that fail at it."""

import asyncio
import time
from collections.abc import Callable, Sequence

from libra_core.config import LibraConfig
from libra_core.errors import EngineLostError
from libra_core.runtime.rollout.broadcast_round import Drop
from libra_core.runtime.rollout.fleet import EngineMember
from libra_core.runtime.rollout.weights import NotStagedError, PublicationOrder, load_weights
from libra_core.types.reports import EnginePublication


class WeightLoads:
    """Owned by the coordinator's event loop; one order at a time."""

    def __init__(self, config: LibraConfig, record: Callable[[str, str, float, float], None], drop: Drop) -> None:
        self._config, self._record, self._drop = config, record, drop
        self._behind: list[tuple[EngineMember, EngineLostError]] = []
        """Engines that a broadcast did not reach."""

    async def load_all(self, members: Sequence[EngineMember], order: PublicationOrder) -> list[EnginePublication | None]:
        """A broadcast needs all engines at once, whatever the configured order."""
        if self._config.publication.order == "rolling" and self._config.weights_by_file:
            return [await self.load(member, order) for member in members]
        return list(await asyncio.gather(*(self.load(member, order) for member in members)))

    async def load(self, member: EngineMember, order: PublicationOrder) -> EnginePublication | None:
        """None where it failed; the engine is dropped, now or when the broadcast is judged."""
        start_s = time.time()
        try:
            result = await load_weights(member, order, self._config.publication)
        except EngineLostError as error:
            if isinstance(error, NotStagedError) and not self._config.weights_by_file:
                self._behind.append((member, error))
            else:
                self._drop(member, error)
            return None
        self._record(f"weights v{order.version}", member.engine_id, start_s, time.time())
        return result

    async def judge(self, whole: "asyncio.Future[bool]") -> None:
        """One that a whole broadcast did not reach is at fault; where it was not whole, engines serve on until the repeat."""
        behind, self._behind = self._behind, []
        done, _ = await asyncio.wait([whole], timeout=self._config.publication.deadline_s if behind else 0)
        if not done or whole.result():  # unbounded: it is done
            for member, error in behind:
                self._drop(member, error)
