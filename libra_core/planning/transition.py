"""The actions between two plans. Pure; `runtime.transitions` carries them out and rolls them back.

GPUs are freed before they are used, so every prefix of the actions fits the cluster, and so does every rolled-back prefix.
Where a new engine fits into half of the engines' GPUs, they are replaced in two waves, so that some engine always serves.
"""

from collections.abc import Sequence
from dataclasses import replace

from libra_core.errors import ConfigError
from libra_core.planning.decision import tier_of
from libra_core.types.plan import Plan
from libra_core.types.transition import Action, Tier, Transition, Verb

TRAINER = "trainer"
Named = tuple[str, int]
"""An engine by name, and its degree."""


def transition(current: Plan, candidate: Plan) -> Transition:
    """How to get there.

    Raises:
        ConfigError: when the plans are the same, or engines change and hybrids would train at once.
    """
    tier = tier_of(current, candidate)
    if tier is None:
        raise ConfigError("both plans are the same; there is nothing to do")
    if tier is Tier.FLIP:
        actions = _flips(current, candidate)
    elif candidate.hybrids_training:
        raise ConfigError(
            f"the new plan has {candidate.hybrids_training} hybrid replicas training from the start; "
            "change engines or the training layout first, then flip them"
        )
    else:
        actions = [*_flips(current, replace(current, hybrids_training=0)), *_rebuild(current, candidate)]
    return Transition(tier=tier, source=current, target=candidate, actions=tuple(actions))


def _flips(current: Plan, candidate: Plan) -> list[Action]:
    """The lowest slots train; a replica that returns is the one that joined last."""
    now, then = current.hybrids_training, candidate.hybrids_training
    if then > now:
        return [action for slot in range(now, then) for action in _to_training(slot)]
    return [action.inverse for slot in reversed(range(then, now)) for action in reversed(_to_training(slot))]


def _to_training(slot: int) -> list[Action]:
    verbs = (Verb.DRAIN_ENGINE, Verb.STOP_ENGINE, Verb.START_REPLICA, Verb.JOIN)
    return [Action(verb=verb, target=f"hybrid-{slot}") for verb in verbs]


def _rebuild(current: Plan, candidate: Plan) -> list[Action]:
    """Engines that both plans have stay; the trainer is touched only when its layout changes."""
    gone, fresh = _engines_that_differ(current, candidate)
    if tier_of(current, candidate) is not Tier.RELAYOUT:
        return [action for leaving, coming in _waves(gone, fresh) for action in _replace(leaving, coming)]
    return [
        *_each(Verb.DRAIN_ENGINE, gone),
        Action(verb=Verb.HOLD_TRAINER, target=TRAINER, layout=current.train),
        Action(verb=Verb.STOP_TRAINER, target=TRAINER, layout=current.train),
        *_each(Verb.STOP_ENGINE, gone),
        Action(verb=Verb.START_TRAINER, target=TRAINER, layout=candidate.train),
        Action(verb=Verb.RELEASE_TRAINER, target=TRAINER, layout=candidate.train),
        *_each(Verb.START_ENGINE, fresh),
        *_each(Verb.ADMIT_ENGINE, fresh),
    ]


def _replace(gone: Sequence[Named], fresh: Sequence[Named]) -> list[Action]:
    away = [*_each(Verb.DRAIN_ENGINE, gone), *_each(Verb.STOP_ENGINE, gone)]
    return [*away, *_each(Verb.START_ENGINE, fresh), *_each(Verb.ADMIT_ENGINE, fresh)]


def _each(verb: Verb, engines: Sequence[Named]) -> list[Action]:
    return [Action(verb=verb, target=name, tp=tp) for name, tp in engines]


def _waves(gone: Sequence[Named], fresh: Sequence[Named]) -> list[tuple[Sequence[Named], Sequence[Named]]]:
    """Engines that leave, and those that come where they were: half of the GPUs first, unless no new engine fits there."""
    half = sum(tp for _, tp in gone) / 2
    for count in range(1, len(gone)):
        freed = sum(tp for _, tp in gone[:count])
        if freed < half:
            continue
        fitting = [number for number in range(1, len(fresh) + 1) if sum(tp for _, tp in fresh[:number]) <= freed]
        if fitting:
            return [(gone[:count], fresh[: fitting[-1]]), (gone[count:], fresh[fitting[-1] :])]
    return [(gone, fresh)]


def _engines_that_differ(current: Plan, candidate: Plan) -> tuple[list[Named], list[Named]]:
    """Names of engines to stop, highest numbers first, and of engines to start, whose numbers are new."""
    surplus = {tp: count - dict(candidate.rollout.engines).get(tp, 0) for tp, count in current.rollout.engines}
    gone: list[Named] = []
    for number, tp in reversed(list(enumerate(current.rollout.degrees))):
        if surplus[tp] > 0:
            surplus[tp] -= 1
            gone.append((f"engine-{number}", tp))
    running = dict(current.rollout.engines)
    wanted = [tp for tp, count in candidate.rollout.engines for _ in range(count - running.get(tp, 0))]
    first = current.rollout.num_engines
    return gone, [(f"engine-{first + index}", tp) for index, tp in enumerate(wanted)]
