"""Hybrid workers without Ray, engines or Megatron: they remember what runs on them and fail on order."""

from dataclasses import dataclass, field

from libra_core.config import plan_of
from libra_core.config.loading import validate_config
from libra_core.errors import ResourceError

CONFIG = validate_config({"rollout": {"engines": [{"tp": 1, "count": 3}]}, "elastic": {"hybrid_replicas": 2, "join_s": 60.0}})
SERVING = plan_of(CONFIG)


@dataclass
class Join:
    active_from: int = 0
    """First step that it takes part in."""


@dataclass
class FakeWorker:
    """Remembers what runs on it; the action named in `fails` raises once it is half done."""

    slot: int
    engine: bool = True
    serves: bool = True
    replica: bool = False
    joined: int | None = None
    fails: str = ""
    asked: bool = False
    alive: bool = True
    join_report: Join = field(default_factory=Join)

    @property
    def engines(self) -> list[object]:
        return []

    @property
    def ranks(self) -> list[object]:
        return []

    def _done(self, name: str) -> None:
        if self.fails == name:
            self.fails = ""
            raise ResourceError(f"no luck with {name}")

    async def drain(self) -> None:
        self.serves = False
        self._done("drain")

    async def admit(self) -> None:
        assert self.engine
        self.serves = True
        self._done("admit")

    async def stop_engine(self) -> None:
        self.engine = False
        self._done("stop_engine")

    async def start_engine(self) -> None:
        assert not self.replica, "GPUs hold one of the two"
        self.engine = True
        self._done("start_engine")

    async def start_replica(self) -> None:
        assert not self.engine, "GPUs hold one of the two"
        self.replica = self.alive = True
        self._done("start_replica")

    async def stop_replica(self) -> None:
        self.replica, self.joined = False, None
        self._done("stop_replica")

    def die(self) -> None:
        """Only a replica can: an engine's death is the fleet's to see."""
        self.alive = not self.replica

    def kill_replica(self) -> None:
        self.replica, self.joined = False, None

    async def join(self, epoch: int) -> Join:
        if not (self.replica and self.alive):
            raise ResourceError("there is nobody to join")
        self.joined, self.asked = epoch, False
        self._done("join")
        return self.join_report

    async def ask_to_leave(self) -> None:
        self.asked = True

    async def cut(self) -> None:
        self.joined, self.asked = None, False
        self._done("cut")

    @property
    def state(self) -> str:
        return {(True, True, False): "serves", (False, False, True): "trains"}.get(
            (self.engine, self.serves, self.replica), "between"
        )
