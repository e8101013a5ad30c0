"""Carries a transition out: action after action, and all of it back when one fails."""

import logging
import time
from collections.abc import Awaitable, Callable

from libra_core.types.plan import Plan
from libra_core.types.transition import Action, Tier, Transition, TransitionOutcome

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

    The failed action is undone too, since it may be half done. A cancellation is no failure: it passes through.
    """
    seconds: list[tuple[str, float]] = []
    begun: list[Action] = []
    for action in transition.actions:
        begun.append(action)
        error = await _attempt(action, perform, seconds)
        if error:
            logger.warning("%s failed (%s); %d actions are undone", action, error, len(begun))
            left = await _undo(begun, perform, seconds)
            return TransitionOutcome(
                plan=transition.source, applied=False, failed=action, error=error, not_undone=left, seconds=tuple(seconds)
            )
    return TransitionOutcome(plan=transition.target, applied=True, seconds=tuple(seconds))


async def _undo(begun: list[Action], perform: Perform, seconds: list[tuple[str, float]]) -> tuple[str, ...]:
    """Goes on after an inverse that fails: the rest of the old plan is still worth having."""
    left: list[str] = []
    for action in reversed(begun):
        error = await _attempt(action.inverse, perform, seconds)
        if error:
            left.append(f"{action.inverse}: {error}")
    return tuple(left)


async def _attempt(action: Action, perform: Perform, seconds: list[tuple[str, float]]) -> str:
    """Empty when it worked, else one line."""
    started = time.monotonic()
    try:
        await perform(action)
    except Exception as error:  # whatever an action dies of, the plan before it must come back
        return (str(error).splitlines() or [type(error).__name__])[0]
    finally:
        seconds.append((str(action), time.monotonic() - started))
    return ""
