"""A transition is applied as a whole or not at all."""

import asyncio
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from libra_core.errors import ConfigError, ResourceError
from libra_core.planning.transition import transition
from libra_core.runtime.cluster.transitions import TransitionOutcome, carry_out, refusal
from libra_core.types.plan import Plan, RolloutLayout, TrainLayout
from libra_core.types.transition import Action, Tier, Transition, Verb


def plan(engines: dict[int, int], *, dp: int = 2, hybrids: int = 2, training: int = 0) -> Plan:
    rollout = RolloutLayout(engines=tuple(sorted(engines.items())))
    return Plan(train=TrainLayout(dp=dp), rollout=rollout, hybrid_replicas=hybrids, hybrids_training=training)


PLANS = st.builds(lambda ones, twos, dp: plan({1: ones, 2: twos}, dp=dp), st.integers(2, 4), st.integers(0, 2), st.integers(1, 3))


@dataclass
class Cluster:
    """What runs. Actions are idempotent; those whose number is in `fails` raise half done."""

    engines: dict[str, str] = field(default_factory=dict)
    hybrids: dict[str, str] = field(default_factory=dict)
    trainer: tuple[TrainLayout | None, str] = (None, "stopped")
    fails: set[int] = field(default_factory=set)
    count: int = 0

    @classmethod
    def running(cls, of: Plan) -> "Cluster":
        engines = {f"engine-{number}": f"tp{tp} serves" for number, tp in enumerate(of.rollout.degrees)}
        hybrids = {f"hybrid-{slot}": "trains" if slot < of.hybrids_training else "serves" for slot in range(of.hybrid_replicas)}
        return cls(engines=engines, hybrids=hybrids, trainer=(of.train, "runs"))

    def state(self) -> tuple[object, ...]:
        return dict(self.engines), dict(self.hybrids), self.trainer

    async def perform(self, action: Action) -> None:
        number, self.count = self.count, self.count + 1
        self._do(action)
        if number in self.fails:
            raise ResourceError(f"no luck with {action}")

    def _do(self, action: Action) -> None:
        if action.target == "trainer":
            now, word = self.trainer
            after: dict[Verb, tuple[TrainLayout | None, str]] = {
                Verb.HOLD_TRAINER: (now, "held"),
                Verb.RELEASE_TRAINER: (now, "runs"),
                Verb.STOP_TRAINER: (None, "stopped"),
                Verb.START_TRAINER: (action.layout, "held" if word == "stopped" else word),
            }
            self.trainer = after[action.verb]
            return
        words = {
            Verb.DRAIN_ENGINE: "drained",
            Verb.ADMIT_ENGINE: "serves",
            Verb.STOP_ENGINE: "stopped",
            Verb.START_ENGINE: "drained",
            Verb.START_REPLICA: "replica",
            Verb.STOP_REPLICA: "stopped",
            Verb.JOIN: "trains",
            Verb.LEAVE: "replica",
        }
        if action.target.startswith("hybrid"):
            self.hybrids[action.target] = words[action.verb]
        elif action.verb is Verb.STOP_ENGINE:
            self.engines.pop(action.target, None)
        else:
            self.engines[action.target] = f"tp{action.tp} {words[action.verb]}"


LOOP = asyncio.Runner()
"""One for all examples; one each would be slow."""


def carried(change: Transition, cluster: Cluster) -> TransitionOutcome:
    return LOOP.run(carry_out(change, cluster.perform))


def names_of(of: Plan) -> list[int]:
    return sorted(of.rollout.degrees)


@given(PLANS, PLANS)
def test_a_transition_ends_in_the_new_plan(old: Plan, new: Plan) -> None:
    if names_of(old) == names_of(new) and old.train == new.train:
        return
    cluster = Cluster.running(old)
    outcome = carried(transition(old, new), cluster)
    assert (outcome.applied, outcome.plan) == (True, new)
    assert sorted(cluster.engines.values()) == sorted(f"tp{tp} serves" for tp in new.rollout.degrees)
    assert cluster.trainer == (new.train, "runs")


@given(PLANS, PLANS, st.integers(0, 30))
def test_a_failure_anywhere_leaves_the_old_plan_as_it_was(old: Plan, new: Plan, at: int) -> None:
    if names_of(old) == names_of(new) and old.train == new.train:
        return
    change = transition(old, new)
    cluster = Cluster.running(old)
    before = cluster.state()
    cluster.fails = {at % len(change.actions)}
    outcome = carried(change, cluster)
    assert (outcome.applied, outcome.plan, outcome.not_undone) == (False, old, ())
    assert outcome.failed == change.actions[at % len(change.actions)]
    assert cluster.state() == before


def test_failing_in_the_third_action_names_it_and_the_engines_serve() -> None:
    change = transition(plan({1: 4}), plan({1: 4}, training=1))
    cluster = Cluster.running(change.source)
    cluster.fails = {2}
    outcome = carried(change, cluster)
    assert outcome.failed is not None
    assert str(outcome.failed) == "start replica hybrid-0"
    assert outcome.error == "no luck with start replica hybrid-0"
    assert set(cluster.hybrids.values()) == {"serves"}
    undone = ["stop replica hybrid-0", "start engine hybrid-0", "admit engine hybrid-0"]
    assert [name for name, _ in outcome.seconds][3:] == undone


def test_an_inverse_that_fails_is_named_and_the_others_are_still_undone() -> None:
    change = transition(plan({1: 4}), plan({1: 4}, training=1))
    cluster = Cluster.running(change.source)
    cluster.fails = {2, 3}
    outcome = carried(change, cluster)
    assert outcome.not_undone == ("stop replica hybrid-0: no luck with stop replica hybrid-0",)
    assert cluster.hybrids["hybrid-0"] == "serves"


def test_actions_of_one_verb_run_side_by_side_and_cost_what_the_longest_took() -> None:
    async def slow(action: Action) -> None:
        await asyncio.sleep(0.05 if action.verb is Verb.START_ENGINE else 0.0)

    change = transition(plan({2: 4}, hybrids=0), plan({1: 8}, hybrids=0))
    outcome = LOOP.run(carry_out(change, slow))
    verbs = [Verb.DRAIN_ENGINE, Verb.STOP_ENGINE, Verb.START_ENGINE, Verb.ADMIT_ENGINE]
    assert [verb for verb, _ in outcome.phases] == 2 * verbs
    assert len(outcome.seconds) == len(change.actions)
    started_s = sum(seconds for verb, seconds in outcome.phases if verb is Verb.START_ENGINE)
    assert 0.1 <= started_s < 0.4, "two waves of four starts of 0.05 s each"


def test_all_that_run_side_by_side_are_undone_when_one_fails() -> None:
    change = transition(plan({1: 4}, hybrids=0), plan({4: 1}, hybrids=0))
    cluster = Cluster.running(change.source)
    before, cluster.fails = cluster.state(), {1}
    outcome = carried(change, cluster)
    assert str(outcome.failed) == "drain engine engine-2 (tp 1)"
    assert [name for name, _ in outcome.seconds[4:]] == [f"admit engine engine-{number} (tp 1)" for number in range(4)]
    assert cluster.state() == before


def test_a_flip_back_is_the_flip_undone() -> None:
    there = transition(plan({1: 4}), plan({1: 4}, training=2))
    back = transition(plan({1: 4}, training=2), plan({1: 4}))
    assert there.tier is back.tier is Tier.FLIP
    assert list(back.actions) == [action.inverse for action in reversed(there.actions)]


def test_doing_every_action_twice_changes_nothing_more() -> None:
    change = transition(plan({1: 4}, training=1), plan({2: 2}, dp=1))
    once, twice = Cluster.running(change.source), Cluster.running(change.source)
    for action in change.actions:
        once._do(action)
        twice._do(action)
        twice._do(action)
    assert once.state() == twice.state()


HOMOGENEOUS = st.sampled_from([{1: 8}, {2: 4}, {4: 2}, {8: 1}])


@given(HOMOGENEOUS, HOMOGENEOUS, st.integers(0, 60))
def test_gpus_are_freed_before_they_are_used_and_some_engine_serves_where_half_of_them_hold_a_new_one(
    old: dict[int, int], new: dict[int, int], at: int
) -> None:
    """On the way there and, after a failure anywhere, on the way back."""
    if old == new:
        return
    change = transition(plan(old, hybrids=0), plan(new, hybrids=0))
    cluster, used, serving = Cluster.running(change.source), [8], [1]
    cluster.fails = {at} if at < len(change.actions) else set()
    do = cluster._do

    def watched(action: Action) -> None:
        do(action)
        used.append(sum(int(word.split()[0].removeprefix("tp")) for word in cluster.engines.values() if "stopped" not in word))
        serving.append(sum("serves" in word for word in cluster.engines.values()))

    cluster._do = watched  # type: ignore[method-assign]
    carried(change, cluster)
    assert max(used) <= 8
    assert min(serving) >= (1 if max(*old, *new) <= 4 else 0)


def test_two_engines_of_two_halves_are_replaced_one_after_the_other() -> None:
    lines = [str(action) for action in transition(plan({1: 4}), plan({2: 2})).actions]
    half = ["drain engine engine-3 (tp 1)", "drain engine engine-2 (tp 1)", "stop engine engine-3 (tp 1)"]
    assert lines[:3] == half
    assert lines[4:7] == ["start engine engine-4 (tp 2)", "admit engine engine-4 (tp 2)", "drain engine engine-1 (tp 1)"]


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (transition(plan({1: 4}, hybrids=0), plan({2: 2}, hybrids=0)), ""),
        (transition(plan({1: 4}), plan({1: 4}, training=1)), ""),
        (transition(plan({1: 4}), plan({2: 2})), "2 hybrid replicas hold some of the engines"),
        (transition(plan({1: 4}), plan({1: 4}, dp=1)), "does not change in a running session"),
    ],
)
def test_a_session_moves_hybrids_or_a_fleet_without_hybrids_and_refuses_the_rest(change: Transition, sentence: str) -> None:
    found = refusal(change, change.source)
    assert found == sentence if not sentence else sentence in found
    assert "has changed since" in refusal(change, change.target)


def test_impossible_transitions_are_refused() -> None:
    with pytest.raises(ConfigError, match="nothing to do"):
        transition(plan({1: 4}), plan({1: 4}))
    with pytest.raises(ConfigError, match="then flip them"):
        transition(plan({1: 4}), plan({1: 3}, training=1))
