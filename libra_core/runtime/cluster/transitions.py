"""Carries a transition out: phase after phase, and all of it back when an action fails."""

import asyncio
import itertools
import logging
import time
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field

from libra_core.types.plan import Plan
from libra_core.types.transition import Action, Tier, Transition, TransitionOutcome, Verb

logger = logging.getLogger(__name__)

Perform = Callable[[Action], Awaitable[None]]
"""Does one action, or finds it done already; raises when it cannot be done within its deadline."""


def refusal(move: Transition, active: Plan) -> str:
    """Why a running session does not begin it; empty where it does."""
    if move.source != active:
        return "the plan has changed since this was decided"
    if move.tier is Tier.RELAYOUT:
        return "the core training layout does not change in a running session; start a run with another training.layout"
    if move.tier is Tier.REPARTITION and active.hybrid_replicas:
        return (
            f"{active.hybrid_replicas} hybrid replicas hold some of the engines, which keep their degree; "
            "only a fleet without hybrids is re-partitioned"
        )
    return ""


async def carry_out(transition: Transition, perform: Perform) -> TransitionOutcome:
    """All actions in order; after a failure the inverses of those begun, last first, so that the old plan is active again.

    Actions of one verb that follow each other run side by side. The failed action is undone too, since it may be half done. A
    cancellation is no failure: it passes through.
    """
    times = _Times()
    begun: list[Action] = []
    for actions in _side_by_side(transition.actions):
        begun += actions
        errors = await _attempt(actions, perform, times)
        if errors:
            action, error = errors[0]
            logger.warning("%s failed (%s); %d actions are undone", action, error, len(begun))
            left = await _undo(begun, perform, times)
            return TransitionOutcome(
                plan=transition.source,
                applied=False,
                failed=action,
                error=error,
                not_undone=left,
                seconds=tuple(times.actions),
                phases=tuple(times.phases),
            )
    return TransitionOutcome(plan=transition.target, applied=True, seconds=tuple(times.actions), phases=tuple(times.phases))


@dataclass(slots=True)
class _Times:
    """Of actions, each by itself, and of the phases that they ran in."""

    actions: list[tuple[str, float]] = field(default_factory=list[tuple[str, float]])
    phases: list[tuple[Verb, float]] = field(default_factory=list[tuple[Verb, float]])


async def _undo(begun: list[Action], perform: Perform, times: _Times) -> tuple[str, ...]:
    """Goes on after an inverse that fails: the rest of the old plan is still worth having."""
    left: list[str] = []
    for inverses in _side_by_side(action.inverse for action in reversed(begun)):
        left += [f"{inverse}: {error}" for inverse, error in await _attempt(inverses, perform, times)]
    return tuple(left)


async def _attempt(actions: list[Action], perform: Perform, times: _Times) -> list[tuple[Action, str]]:
    """Those that failed, each with one line."""
    started = time.monotonic()
    errors = await asyncio.gather(*(_one(action, perform, times) for action in actions))
    times.phases.append((actions[0].verb, time.monotonic() - started))
    return [(action, error) for action, error in zip(actions, errors, strict=True) if error]


async def _one(action: Action, perform: Perform, times: _Times) -> str:
    """Empty when it worked, else one line."""
    started = time.monotonic()
    try:
        await perform(action)
    except Exception as error:  # whatever an action dies of, the plan before it must come back
        return (str(error).splitlines() or [type(error).__name__])[0]
    finally:
        times.actions.append((str(action), time.monotonic() - started))
    return ""


def _side_by_side(actions: Iterable[Action]) -> list[list[Action]]:
    return [list(group) for _, group in itertools.groupby(actions, key=lambda action: action.verb)]
