"""What each routing policy decides."""

import gc
import hashlib
import math
import random
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from libra_core.errors import ConfigError
from libra_core.ports.routing import EngineLoad, RoutingPolicy
from libra_core.routing.buckets import Buckets
from libra_core.routing.build import POLICIES, Policy, RouterSetup, build_policy
from libra_core.routing.costs import CostTable
from libra_core.routing.expected_cost import ExpectedCost
from libra_core.routing.prefix_tree import Cursor
from libra_core.types.ids import EngineId, TrajectoryId
from support.routing import BUCKETS, FLEET, OK, TIMEOUT, costs, engine, finished, turn

TREE_POLICIES = ("expected_cost", "mean_p90", "most_likely")


def embed(texts: Sequence[str]) -> NDArray[np.float32]:
    """A direction per text, the same in every process."""
    seeds = [int.from_bytes(hashlib.sha256(text.encode()).digest()[:4], "big") for text in texts]
    return np.stack([np.random.default_rng(seed).normal(size=16) for seed in seeds]).astype(np.float32)


def build(name: str, **options: object) -> Policy:
    setup = {"total_tokens": lambda name: len(name), "embed": embed} | options
    return build_policy(name, RouterSetup(buckets=BUCKETS, costs=costs(), **setup))  # type: ignore[arg-type]


def teach(policy: RoutingPolicy, rounds: int = 30) -> None:
    """A timeout after the first turn means a long trajectory, a success a short one."""
    for number in range(rounds):
        policy.learn(finished([100, 200], [OK], name=f"s{number}"))
        policy.learn(finished([100, 8000], [TIMEOUT], name=f"l{number}"))


@pytest.mark.parametrize("name", TREE_POLICIES)
def test_a_tool_timeout_moves_a_trajectory_to_the_large_engine(name: str) -> None:
    policy = build(name, start="smallest")
    teach(policy, rounds=200)
    assert policy.choose(turn(), FLEET) == "small"
    assert policy.choose(turn("a", current="small", returns=[TIMEOUT], generated=100, context=3000), FLEET) == "large"
    assert policy.choose(turn("b", current="small", returns=[OK], generated=100, context=3000), FLEET) == "small"


@pytest.mark.parametrize("name", TREE_POLICIES)
def test_a_trajectory_starts_in_the_smallest_bucket_or_where_its_prompt_belongs(name: str) -> None:
    for start, expected in (("smallest", "small"), ("predicted", "large")):
        policy = build(name, start=start)
        for number in range(30):
            policy.learn(finished([9000], prompt="long", name=f"l{number}"))
        assert policy.choose(turn(prompt="long"), FLEET) == expected


@pytest.mark.parametrize("name", TREE_POLICIES)
def test_without_evidence_nothing_moves(name: str) -> None:
    policy = build(name)
    policy.learn(finished([100, 9000], [TIMEOUT]))
    assert policy.choose(turn(), FLEET) == "small"
    assert policy.choose(turn(current="small", returns=[TIMEOUT], generated=100), FLEET) == "small"


@pytest.mark.parametrize("name", TREE_POLICIES)
def test_a_trajectory_in_its_last_bucket_stays(name: str) -> None:
    policy = build(name)
    teach(policy)
    assert policy.choose(turn(current="large", returns=[TIMEOUT], generated=7000), FLEET) == "large"


def test_the_papers_rule_stays_where_mean_and_p90_disagree() -> None:
    policy = build("mean_p90", start="smallest")
    for number in range(40):
        policy.learn(finished([10, 9000 if number % 8 == 0 else 20], [OK], name=f"x{number}"))
    assert policy.choose(turn(current="small", returns=[OK], generated=10), FLEET) == "small"


def test_one_long_visit_moves_nobody() -> None:
    """The fault of agreement on a single sample: its mean and its P90 always agree."""
    policy = build("mean_p90", start="predicted")
    for number in range(500):
        policy.learn(finished([100], prompt=f"p{number}", name=f"x{number}"))
    policy.learn(finished([20_000], prompt="odd"))
    assert policy.choose(turn(prompt="odd"), FLEET) == "small"


@settings(max_examples=60, deadline=None)
@given(
    st.integers(min_value=0, max_value=8000),
    st.integers(min_value=0, max_value=2_000_000),
    st.sampled_from(["small", "middle", "large"]),
    st.sampled_from([OK, TIMEOUT]),
)
def test_a_move_never_happens_when_its_gain_is_below_its_cost(generated: int, context: int, home: str, last: object) -> None:
    policy, table = build("expected_cost"), costs()
    assert isinstance(policy, ExpectedCost)
    teach(policy)
    state = turn(current=home, returns=[last], generated=generated, context=context)  # type: ignore[list-item]
    chosen = policy.choose(state, FLEET)
    if chosen == home:
        return
    residual = policy.reader.residual(state)
    bucket = {item.engine_id: item.bucket for item in FLEET}
    gain_s = expected_s(table, bucket[home], generated, residual.shares) - expected_s(
        table, bucket[chosen], generated, residual.shares
    )
    assert gain_s > 0.95 * table.move_s(bucket[chosen], context)  # the policy rounds `generated` to an eighth of an octave


def expected_s(table: CostTable, bucket: int, generated: int, shares: NDArray[np.float32]) -> float:
    from libra_core.routing.sketch import CENTRES

    return sum(float(p) * table.decode_s(bucket, generated, rest) for p, rest in zip(shares, CENTRES, strict=True))


def test_an_overloaded_home_is_left_and_a_full_target_is_not_entered() -> None:
    policy = build("expected_cost")
    teach(policy)
    crowded = [engine("small", 0, load=60, capacity=20), engine("middle", 1, load=1, capacity=20)]
    assert policy.choose(turn("a", current="small", returns=[OK], generated=100), crowded) == "middle"
    full = [engine("small", 0, load=1, capacity=20), engine("large", 2, load=20, capacity=20)]
    assert policy.choose(turn("b", current="small", returns=[TIMEOUT], generated=100), full) == "small"


@pytest.mark.parametrize("name", POLICIES)
def test_same_inputs_and_seed_give_the_same_decisions(name: str) -> None:
    def decisions(seed: int) -> list[str]:
        policy, rng, found = build(name, seed=seed), random.Random(7), list[str]()
        fleet = [engine(f"e{number}", number % 3) for number in range(9)]
        for number in range(60):
            returns = [rng.choice([OK, TIMEOUT]) for _ in range(3)]
            current = None
            for done in range(4):
                current = policy.choose(turn(f"t{number}", current=current, returns=returns[:done], generated=done * 300), fleet)
                found.append(current)
            policy.learn(finished([300, 300, 300, rng.randrange(9000)], returns, name=f"t{number}"))
        return found

    assert decisions(1) == decisions(1)
    assert decisions(1) != decisions(2)


@pytest.mark.parametrize("name", POLICIES)
def test_a_lost_engine_is_replaced_by_one_that_is_there(name: str) -> None:
    policy = build(name)
    teach(policy)
    assert policy.choose(turn(current="gone", returns=[TIMEOUT], generated=100), FLEET) in {item.engine_id for item in FLEET}
    assert policy.choose(turn(current="gone"), [FLEET[1]]) == "middle"


@pytest.mark.parametrize("name", POLICIES)
def test_a_policy_follows_a_fleet_of_other_degrees(name: str) -> None:
    policy = build(name)
    teach(policy)
    policy.choose(turn("live", returns=[OK]), FLEET)
    one = Buckets(degrees=(2,), limits=(math.inf,))
    four = Buckets(degrees=(1, 2, 4, 8), limits=(100.0, 1000.0, 4000.0, math.inf))
    for buckets in (one, four, BUCKETS):
        policy.retune(buckets, costs(buckets))
        engines = [
            EngineLoad(engine_id=EngineId(f"e{tp}"), tp=tp, in_flight=0, bucket=bucket)
            for bucket, tp in enumerate(buckets.degrees)
        ]
        for returns, generated in (((), 0), ((TIMEOUT,), 100), ((OK, OK), 5000)):
            state = turn(f"t{generated}", returns=returns, generated=generated)
            assert policy.choose(state, engines) in {load.engine_id for load in engines}
        teach(policy)


@pytest.mark.parametrize("name", TREE_POLICIES)
def test_ended_trajectories_leave_nothing_behind(name: str) -> None:
    policy = build(name)
    gc.freeze()  # what lives already is not looked through
    for number in range(50):
        policy.choose(turn(f"t{number}"), FLEET)
    assert live_cursors() == 50
    for number in range(25):
        policy.learn(finished([10], name=f"t{number}"))
        policy.forget(TrajectoryId(f"t{number + 25}"))
    assert live_cursors() == 0


def live_cursors() -> int:
    gc.collect()
    return sum(type(kept) is Cursor for kept in gc.get_objects())


def test_classic_feedback_queue_demotes_on_overrun_only() -> None:
    policy = build("mlfq")
    assert policy.choose(turn(), FLEET) == "small"
    assert policy.choose(turn(current="small", generated=1000), FLEET) == "small"
    assert policy.choose(turn(current="small", generated=1001), FLEET) == "middle"
    assert policy.choose(turn(current="small", generated=5000), FLEET) == "large"
    assert policy.choose(turn(current="large", generated=10), FLEET) == "large"


def test_sticky_stays_whatever_the_load() -> None:
    policy = build("sticky")
    assert policy.choose(turn(current="small"), [engine("small", load=99), engine("large", 2)]) == "small"
    assert policy.choose(turn(), [engine("small", load=99), engine("large", 2)]) == "large"


def test_the_oracle_starts_where_the_trajectory_ends() -> None:
    policy = build("oracle", total_tokens=lambda name: {"short": 10, "mid": 3000, "long": 90_000}[name])
    assert [policy.choose(turn(name), FLEET) for name in ("short", "mid", "long")] == ["small", "middle", "large"]


def test_embeddings_learn_the_length_of_a_prompt_and_choose_once() -> None:
    policy = build("embedding")
    for number in range(200):
        policy.learn(finished([9000 if number % 2 else 50], prompt="long" if number % 2 else "short", name=f"x{number}"))
    assert policy.choose(turn(prompt="long"), FLEET) == "large"
    assert policy.choose(turn(prompt="short"), FLEET) == "small"
    assert policy.choose(turn(prompt="long", current="small", returns=[OK], generated=10), FLEET) == "small"


def test_more_tool_calls_bring_a_faster_engine() -> None:
    policy = build("tool_priority")
    for number in range(30):
        policy.learn(finished([[100], [2000], [9000]][number % 3], name=f"x{number}"))
    for number in range(20):
        policy.choose(turn(f"t{number}", current="small", returns=[OK] * (number % 4)), FLEET)
    assert policy.choose(turn("many", current="small", returns=[OK] * 9), FLEET) == "large"
    assert policy.choose(turn("none", current="small"), FLEET) == "small"


def test_presorting_places_by_rank_of_the_prompts_mean() -> None:
    policy = build("presorted")
    for number in range(30):
        policy.learn(finished([[100], [2000], [9000]][number % 3], prompt=f"p{number % 3}", name=f"x{number}"))
    for number in range(30):
        policy.choose(turn(f"t{number}", prompt=f"p{number % 3}"), FLEET)
    assert policy.choose(turn("a", prompt="p0"), FLEET) == "small"
    assert policy.choose(turn("b", prompt="p2"), FLEET) == "large"


def test_names_and_needs_that_are_missing_are_sentences() -> None:
    with pytest.raises(ConfigError, match="no routing policy 'fastest'"):
        build("fastest")
    with pytest.raises(ConfigError, match="must be told the totals"):
        build("oracle", total_tokens=None)
    with pytest.raises(ConfigError, match="needs a sentence model"):
        build("embedding", embed=None)
    assert type(build("cmlfq")) is ExpectedCost
