"""What every engine is to the rollout, and what follows from each event. Pure: an event in, a new value and effects out.

```
          Offered                    Loaded              Withdrawn            Drained
(unknown) ───────► WAITING_FOR_WEIGHTS ───────► SERVING ───────────► DRAINING ───────► STOPPED
                        │    │ Withdrawn ─► STOPPED │                                     │
                        │    └── Failed ──┐ Failed  │        Offered, by one who waits ───┘
                        ▼                 ▼         ▼        for it (it was asleep, or trained)
             STOPPED, its asker told     LOST, and replaced ──ReplacementEnded──► STOPPED
```
Three processes know an engine. The controller knows its devices and whether it sleeps or its GPUs train (`runtime/cluster`); vLLM
knows its requests; here is whether it may take turns, and who is to be told. What crosses: `admit_engine` is an offer, and
`retire_engine` a withdrawal that ends when it has drained. A replacement comes under a new name, so a name never serves twice
without an offer between. Between `PublicationBegan` and `PublicationEnded` no engine is withdrawn: the trainer counts on a group
that was formed of those that serve or wait. The fleet manager performs the effects and decides nothing else about an engine.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum

from libra_core.types.ids import EngineId, PolicyVersion


class EngineState(StrEnum):
    WAITING_FOR_WEIGHTS = "waiting for weights"
    """Started, and without weights that others serve with."""
    SERVING = "serving"
    DRAINING = "draining"
    """Takes no turns; its requests are handed over."""
    STOPPED = "stopped"
    """Out of service: retired, asleep, in training, or refused."""
    LOST = "lost"
    """Died or hangs; the controller was asked for a replacement."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Engine:
    """`awaited`: somebody waits until it serves, and hears why when it does not; else it is replaced."""

    state: EngineState
    version: PolicyVersion | None = None
    """Of the weights that it loaded last."""
    awaited: bool = False


@dataclass(frozen=True, kw_only=True)
class OfOne:
    """An event or an effect that is about one engine."""

    engine_id: EngineId


@dataclass(frozen=True, kw_only=True)
class Offered(OfOne):
    """It has started and may serve. A replacement, for which nobody waits, comes too late when it was withdrawn meanwhile."""

    awaited: bool


@dataclass(frozen=True, kw_only=True)
class Loaded(OfOne):
    """It has the weights of this version; None before the first publication, when all start alike."""

    version: PolicyVersion | None


@dataclass(frozen=True, kw_only=True)
class Failed(OfOne):
    """It died, hangs, or took no weights."""

    reason: str


class Withdrawn(OfOne):
    """Its place is wanted."""


class GivenUp(OfOne):
    """Who waited until it serves waits no longer; allowed at any time, since it has not served."""


class Drained(OfOne):
    """It holds nothing any more, or its time to drain is over."""


class ReplacementEnded(OfOne):
    """A replacement of this lost engine was offered, or there is none."""


@dataclass(frozen=True, kw_only=True)
class PublicationBegan:
    token: int


@dataclass(frozen=True, kw_only=True)
class PublicationEnded:
    """Also of one that never began."""

    token: int


OfEngine = Offered | Loaded | Failed | Withdrawn | GivenUp | Drained | ReplacementEnded
Event = OfEngine | PublicationBegan | PublicationEnded


class Serve(OfOne):
    """Turns may bind to it."""


class Withdraw(OfOne):
    """No turn binds to it; it can still hand over what it holds."""


class Forget(OfOne):
    """It holds nothing for anybody."""


@dataclass(frozen=True, kw_only=True)
class Replace(OfOne):
    """Ask the controller for another one in its place."""

    reason: str


@dataclass(frozen=True, kw_only=True)
class Answer(OfOne):
    """To who waits until it serves; an empty `error`: it does."""

    error: str = ""


Effect = Serve | Withdraw | Forget | Replace | Answer
Step = tuple[Engine, tuple[Effect, ...]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Engines:
    """All engines that the rollout has heard of, in order of their first offer."""

    engines: Mapping[EngineId, Engine] = field(default_factory=dict[EngineId, Engine])
    publications: frozenset[int] = frozenset()
    """Begun and not ended; the second try of one begins before the first has ended."""

    def after(self, event: Event) -> "tuple[Engines, tuple[Effect, ...]]":
        """An event that does not fit the engine's state changes nothing: it is late, or repeated."""
        if isinstance(event, PublicationBegan):
            return replace(self, publications=self.publications | {event.token}), ()
        if isinstance(event, PublicationEnded):
            return replace(self, publications=self.publications - {event.token}), ()
        engine = self.engines.get(event.engine_id)
        if isinstance(event, Withdrawn) and not self.may_leave:
            return self, ()
        rule = _RULES.get((engine.state if engine is not None else None, type(event)))
        if rule is None:
            return self, ()
        changed, effects = rule(engine or _UNKNOWN, event)
        return replace(self, engines={**self.engines, event.engine_id: changed}), effects

    @property
    def may_leave(self) -> bool:
        return not self.publications

    def that_are(self, *states: EngineState) -> Iterator[EngineId]:
        return (engine_id for engine_id, engine in self.engines.items() if engine.state in states)

    def state(self, engine_id: EngineId) -> EngineState | None:
        """None: never heard of."""
        engine = self.engines.get(engine_id)
        return engine.state if engine is not None else None


_UNKNOWN = Engine(state=EngineState.STOPPED)


def _offered(_engine: Engine, event: Offered) -> Step:
    return Engine(state=EngineState.WAITING_FOR_WEIGHTS, awaited=event.awaited), ()


def _offered_again(engine: Engine, event: Offered) -> Step:
    """Only by who waits for it; a replacement that was withdrawn comes too late."""
    return _offered(engine, event) if event.awaited else (engine, ())


def _called_back(engine: Engine, event: Offered) -> Step:
    """Who gave it up before it had drained wants it again."""
    return (_offered(engine, event)[0], (Forget(engine_id=event.engine_id),)) if event.awaited else (engine, ())


def _awaited(engine: Engine, event: Offered) -> Step:
    return replace(engine, awaited=engine.awaited or event.awaited), ()


def _serves(_engine: Engine, event: Loaded) -> Step:
    engine_id = event.engine_id
    return Engine(state=EngineState.SERVING, version=event.version), (Serve(engine_id=engine_id), Answer(engine_id=engine_id))


def _updated(engine: Engine, event: Loaded) -> Step:
    return replace(engine, version=event.version), ()


def _refused(engine: Engine, event: Failed) -> Step:
    """At its first weights."""
    if engine.awaited:
        return Engine(state=EngineState.STOPPED), (Answer(engine_id=event.engine_id, error=event.reason),)
    return Engine(state=EngineState.LOST), (Replace(engine_id=event.engine_id, reason=event.reason),)


def _lost(_engine: Engine, event: Failed) -> Step:
    engine_id = event.engine_id
    return Engine(state=EngineState.LOST), (Forget(engine_id=engine_id), Replace(engine_id=engine_id, reason=event.reason))


def _not_wanted(_engine: Engine, event: Withdrawn) -> Step:
    error = f"{event.engine_id} was withdrawn before it had weights"
    return Engine(state=EngineState.STOPPED), (Answer(engine_id=event.engine_id, error=error),)


def _drains(engine: Engine, event: Withdrawn) -> Step:
    return replace(engine, state=EngineState.DRAINING), (Withdraw(engine_id=event.engine_id),)


def _drained(_engine: Engine, event: Drained) -> Step:
    return Engine(state=EngineState.STOPPED), (Forget(engine_id=event.engine_id),)


def _ended(_engine: Engine, _event: OfEngine) -> Step:
    return Engine(state=EngineState.STOPPED), ()


_S = EngineState
_RULES: Mapping[tuple[EngineState | None, type[OfEngine]], Callable[..., Step]] = {
    (None, Offered): _offered,
    (None, Withdrawn): _ended,
    (_S.WAITING_FOR_WEIGHTS, Offered): _awaited,
    (_S.WAITING_FOR_WEIGHTS, Loaded): _serves,
    (_S.WAITING_FOR_WEIGHTS, Failed): _refused,
    (_S.WAITING_FOR_WEIGHTS, Withdrawn): _not_wanted,
    (_S.WAITING_FOR_WEIGHTS, GivenUp): _ended,
    (_S.SERVING, Loaded): _updated,
    (_S.SERVING, Failed): _lost,
    (_S.SERVING, Withdrawn): _drains,
    (_S.DRAINING, Drained): _drained,
    (_S.DRAINING, Offered): _called_back,
    (_S.STOPPED, Offered): _offered_again,
    (_S.LOST, Offered): _offered_again,
    (_S.LOST, ReplacementEnded): _ended,
}
