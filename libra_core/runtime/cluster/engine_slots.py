"""Places for engines, and who starts and stops what is in them."""

import logging
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ray
from ray.exceptions import RayActorError, RayError

from libra_core.config import LibraConfig
from libra_core.engines.log_tail import last_words, logs_of_actor
from libra_core.errors import DeadlineError, LibraError, ResourceError
from libra_core.runtime.base.actors import EngineActor, StartedEngine
from libra_core.runtime.base.placement import Placement, Whereabouts
from libra_core.runtime.base.rpc import ActorHandle, first_line, reply
from libra_core.runtime.base.specs import engine_spec
from libra_core.types.ids import EngineId

logger = logging.getLogger(__name__)

STOP_DEADLINE_S = 20.0
_WHO = "the cluster controller"
_REST_DEADLINE_S = 120.0
"""On CUDA all weights cross to host memory or back."""
_REPLACED = re.compile(r"r\d+$")
"""What a replacement adds to the name of an engine."""


@dataclass(slots=True, kw_only=True)
class EngineSlot:
    """A place for an engine; its occupant changes when an engine is replaced."""

    tp: int
    placement: Placement
    bundle: int = 0
    """Of the placement."""
    engine_id: EngineId
    handle: ActorHandle
    rests: bool = False
    """It may be put to sleep."""


class EngineStarter:
    """Makes engine actors of one configuration. `scratch` as in the controller."""

    def __init__(self, config: LibraConfig, model_folder: str, scratch: str | None) -> None:
        self._config, self._model_folder, self._scratch = config, model_folder, scratch

    def open(self, engine_id: EngineId, tp: int, placement: Placement, bundle: int = 0, *, rests: bool = False) -> EngineSlot:
        """The actor alone; `start` brings its engine up."""
        slot = EngineSlot(tp=tp, placement=placement, bundle=bundle, engine_id=engine_id, handle=None, rests=rests)
        self.occupy(slot, engine_id)
        return slot

    def occupy(self, slot: EngineSlot, engine_id: EngineId) -> None:
        """Another actor in the place of the one before, which is gone."""
        spec, env = engine_spec(
            self._config, self._model_folder, engine_id=engine_id, tp=slot.tp, scratch=self._scratch, sleep_mode=slot.rests
        )
        options = slot.placement.actor_options(slot.bundle, env)
        slot.engine_id = engine_id
        slot.handle = ray.remote(EngineActor).options(name=engine_id, max_concurrency=4096, **options).remote(spec)

    async def start(self, slot: EngineSlot) -> StartedEngine:
        """Waits up to `rollout.engine_start_deadline_s`; raises `ResourceError` when it does not come up."""
        deadline_s = self._config.rollout.engine_start_deadline_s
        try:
            facts = await reply(_WHO, f"{slot.engine_id} to start", slot.handle.start.remote(), deadline_s)
        except DeadlineError:
            raise ResourceError(
                f"{slot.engine_id} did not start within rollout.engine_start_deadline_s = {deadline_s:.0f} s; "
                "raise it on a slow host, or look into the run folder's logs"
            ) from None
        except (LibraError, RayError) as error:
            raise ResourceError(f"{slot.engine_id} did not start: {first_line(error)}{self._last_words(error)}") from error
        return StartedEngine(engine_id=slot.engine_id, tp=slot.tp, kv_tokens=facts.kv_tokens, handle=slot.handle)

    def _last_words(self, error: BaseException) -> str:
        """Of an engine whose process is gone; one that lives has told them itself. Only logs of this host can be read."""
        if self._scratch is None or not isinstance(error.__cause__, RayActorError):
            return ""
        line = last_words(logs_of_actor(Path(self._scratch), str(error.__cause__)))
        return f"; its log ends with: {line}" if line else ""

    async def sleep(self, slot: EngineSlot) -> Whereabouts | None:
        """Where it has freed devices; None when it could not."""
        try:
            return await reply(_WHO, f"{slot.engine_id} to fall asleep", slot.handle.sleep.remote(), _REST_DEADLINE_S)
        except (LibraError, RayError) as error:
            logger.warning("%s could not be put to sleep and is stopped: %s", slot.engine_id, first_line(error))
            return None

    async def wake(self, slot: EngineSlot) -> bool:
        """Whether it has its devices again."""
        try:
            await reply(_WHO, f"{slot.engine_id} to wake up", slot.handle.wake.remote(), _REST_DEADLINE_S)
        except (LibraError, RayError) as error:
            logger.warning("%s did not wake up and is started anew: %s", slot.engine_id, first_line(error))
            return False
        return True

    def kill(self, slot: EngineSlot) -> None:
        """What is left of an engine, without asking it anything."""
        ray.kill(slot.handle, no_restart=True)

    async def stop(self, slot: EngineSlot) -> None:
        """End the engine and its processes; its actor is gone afterwards, however that went."""
        await quiet(f"{slot.engine_id} to stop, before it is killed,", slot.handle.stop.remote(), STOP_DEADLINE_S)
        ray.kill(slot.handle, no_restart=True)


def replacement_name(engine_id: EngineId, number: int) -> EngineId:
    """Of what comes for an engine that died; numbers are used once in a run."""
    return EngineId(f"{_REPLACED.sub('', engine_id)}r{number}")


async def answer_of_fleet(reference: Any, about: str, deadline_s: float) -> None:
    """Wait for the coordinator. Raises as `reply` does."""
    await reply(_WHO, f"the rollout coordinator about {about}", reference, deadline_s)


async def quiet(what: str, reference: Any, deadline_s: float) -> bool:
    """Wait for a call that ends something; an actor that is already gone has ended. False: it did not answer in time."""
    try:
        await reply(_WHO, what, reference, deadline_s)
    except DeadlineError as error:
        logger.warning("%s", error)
        return False
    except (RayError, LibraError) as error:
        logger.info("it was already gone: %s", first_line(error))
    return True
