"""Ray actors that hold an engine or a trainer rank; heavy libraries are imported inside the actor's process.

Ray reads the methods of an actor off its class, in the process that starts it, where the classes of engine and trainer cannot be
had without importing vLLM and Megatron. So each actor names the methods that it takes over (`calls`), and
`tests/unit/runtime/test_actor_calls.py` holds these names, and every call in the runtime, against the classes themselves.
"""

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from inspect import iscoroutinefunction
from typing import TYPE_CHECKING, Any, TypeVar

import ray

from libra_core.runtime.base.placement import Whereabouts, free_port, whereabouts
from libra_core.runtime.base.rpc import ActorHandle
from libra_core.types.batch import StepContributions
from libra_core.types.ids import EngineId
from libra_core.types.trace import TraceSpan

if TYPE_CHECKING:
    from libra_core.elastic.spec import Address, ElasticSpec, HybridSpec
    from libra_core.engines.megatron.spec import TrainerSpec
    from libra_core.engines.vllm.spec import EngineSpec

_Actor = TypeVar("_Actor", bound=type)
_KEEP_SPANS = 10_000


def calls(*names: str) -> Callable[[_Actor], _Actor]:
    """The actor answers these methods by its own `_call(name, …)`."""

    def add(actor: Any) -> Any:
        answer = _answer_later if iscoroutinefunction(actor._call) else _answer
        for name in names:
            method = answer(name)
            method.__name__ = name  # what tracebacks show
            setattr(actor, name, method)
        return actor

    return add


def _answer(name: str) -> Callable[..., Any]:
    def method(self: Any, *args: Any, **named: Any) -> Any:
        return self._call(name, *args, **named)

    return method


def _answer_later(name: str) -> Callable[..., Any]:
    """Ray takes an actor for an async one by its methods."""

    async def method(self: Any, *args: Any, **named: Any) -> Any:
        return await self._call(name, *args, **named)

    return method


@calls(
    "start",
    "generate",
    "offer_kv",
    "update_weights",
    "hold",
    "open_transport",
    "ping",
    "score",
    "abort_all",
    "stats",
    "wake",
    "stop",
)
class EngineActor:
    """One vLLM engine. Async: calls overlap in one event loop; vLLM's own processes are children of this one."""

    def __init__(self, spec: "EngineSpec") -> None:
        from libra_core.engines.vllm.engine import VllmEngine

        self._engine = VllmEngine(spec)

    async def _call(self, name: str, *args: Any, **named: Any) -> Any:
        return await getattr(self._engine, name)(*args, **named)

    async def whereabouts(self) -> Whereabouts:
        return whereabouts()

    async def sleep(self) -> Whereabouts:
        """Returns which devices are free now."""
        await self._engine.sleep()
        return whereabouts()


_SPANS = {
    "accumulate": "accumulate",
    "finish_step": "optimizer step",
    "score_tokens": "canary",
    "export_file": "export",
    "broadcast_weights": "broadcast",
    "save": "checkpoint",
}
"""Work of a trainer rank and its name in the trace. `resolve_step` has none: waiting for replicas is no work."""


@calls("begin_step", "resolve_step", "export_metadata", "open_broadcast", "load", "digest", *_SPANS)
class TrainerActor:
    """One rank of the Megatron world. Synchronous: one call at a time; all ranks must get the same calls in the same order."""

    def __init__(self) -> None:
        self._trainer: Any = None
        self._spans: deque[TraceSpan] = deque(maxlen=_KEEP_SPANS)

    def _call(self, name: str, *args: Any, **named: Any) -> Any:
        start_s = time.time()
        try:
            return getattr(self._trainer, name)(*args, **named)
        finally:
            if name in _SPANS:
                self._spans.append(TraceSpan(name=_SPANS[name], lane="trainer", start_s=start_s, end_s=time.time()))

    def spans(self, since_s: float) -> list[TraceSpan]:
        """What this rank worked at, since a unix time."""
        return [span for span in self._spans if span.end_s > since_s]

    def start(self, spec: "TrainerSpec") -> int:
        """Build the model from the HF folder; returns the policy version."""
        from libra_core.engines.megatron.trainer import MegatronTrainer

        self._trainer = MegatronTrainer(spec)
        return self._trainer.policy_version

    def host(self, loopback: bool) -> str:
        """Address of this rank's host."""
        return "127.0.0.1" if loopback else ray.util.get_node_ip_address()

    def rendezvous(self, loopback: bool) -> tuple[str, int]:
        """Address and a free port of this rank's host; asked of rank 0 only."""
        return free_port(self.host(loopback))

    def active_replicas(self) -> dict[int, int]:
        """Slot to epoch of the hybrid replicas that take part in the step that is open or comes next."""
        return dict(self._trainer.exchange.active) if self._trainer.exchange is not None else {}

    def contributions(self) -> StepContributions | None:
        return self._trainer.contributions

    def exchange_address(self) -> "Address | None":
        """Where the side channel of this rank listens."""
        return self._trainer.exchange.address if self._trainer.exchange is not None else None

    def whereabouts(self) -> Whereabouts:
        return whereabouts()

    def version(self) -> int:
        return self._trainer.policy_version

    def close(self) -> None:
        if self._trainer is not None:
            self._trainer.close()


@calls("join", "begin_step", "accumulate", "leave")
class ReplicaActor:
    """Synchronous: one call at a time, so that a step's calls wait until a join has ended.

    The controller calls `start`, `join`, `leave`, `cut` and `close`; the flow's process calls the parts of a step, on every rank
    in the same order.
    """

    def __init__(self, lent: Whereabouts | None) -> None:
        """`lent`: the device of a sleeping engine that this rank uses; None where it has one of its own."""
        self._lent = lent
        self._trainer: Any = None
        self._replica: Any = None

    def _call(self, name: str, *args: Any, **named: Any) -> Any:
        """Whatever fails cuts the connection: the core is told at once, instead of waiting for a gradient up to its deadline."""
        try:
            return getattr(self._replica, name)(*args, **named)
        except Exception:
            self._replica.close()
            raise

    def rendezvous(self, host: str) -> tuple[str, int]:
        """A free port of this rank's host; asked of rank 0 only."""
        return free_port(host)

    def host(self, loopback: bool) -> str:
        return "127.0.0.1" if loopback else ray.util.get_node_ip_address()

    def whereabouts(self) -> Whereabouts:
        return whereabouts(self._lent)

    def start(self, spec: "TrainerSpec", elastic: "ElasticSpec", hybrid: "HybridSpec") -> None:
        """Build the replica's own world; it holds the start weights until it joins."""
        from libra_core.engines.megatron.hybrid import HybridReplica
        from libra_core.engines.megatron.trainer import MegatronTrainer

        self._trainer = MegatronTrainer(spec)
        self._replica = HybridReplica(self._trainer, elastic, hybrid)

    def finish_step(self, deadline_s: float) -> None:
        """Contribute, then apply what the core made of the step."""
        self._call("contribute")
        self._call("follow", deadline_s=deadline_s)

    def cut(self) -> None:
        """Leave without asking."""
        self._replica.close()

    def close(self) -> None:
        if self._replica is not None:
            self._replica.close()
        if self._trainer is not None:
            self._trainer.close()


@dataclass(frozen=True, slots=True, kw_only=True)
class StartedEngine:
    """An engine that serves."""

    engine_id: EngineId
    tp: int
    kv_tokens: int
    handle: ActorHandle
