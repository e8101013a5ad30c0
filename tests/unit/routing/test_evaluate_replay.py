"""Orders and replay: who is visited when, who may know what, and what is charged."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from libra_core.routing.evaluate.figures import figures_of
from libra_core.routing.evaluate.orders import Visit, grpo_order, recorded_order
from libra_core.routing.evaluate.replay import replay
from support.recordings import Scripted, recorded, world

SAMPLES = st.dictionaries(st.sampled_from("abcdef"), st.integers(1, 7), min_size=1)


def visit(trajectory, epoch: int = 1) -> Visit:
    return Visit(trajectory=trajectory, epoch=epoch, sample_index=0)


@settings(deadline=None, max_examples=60)
@given(SAMPLES, st.integers(1, 4), st.integers(0, 5))
def test_grpo_order_visits_everything_once_and_groups_stand_together(samples: dict[str, int], epochs: int, seed: int) -> None:
    every = [recorded(prompt, 5, sample=number) for prompt, count in samples.items() for number in range(count)]
    visits = grpo_order(every, epochs, seed)
    assert sorted(item.trajectory.name for item in visits) == sorted(item.name for item in every)
    assert [item.epoch for item in visits] == sorted(item.epoch for item in visits)
    runs = [(item.epoch, item.trajectory.prompt_id) for item in visits if item.sample_index == 0]
    assert len(runs) == len(set(runs))
    sizes = [sum(item.epoch == epoch and item.trajectory.prompt_id == prompt for item in visits) for epoch, prompt in runs]
    assert sum(sizes) == len(every)
    for prompt, count in samples.items():
        dealt = [sum(i.epoch == epoch and i.trajectory.prompt_id == prompt for i in visits) for epoch in range(1, epochs + 1)]
        assert max(dealt) - min(dealt) <= 1
        assert sum(dealt) == count


def test_seeds_shuffle() -> None:
    every = [recorded(prompt, 5, sample=number) for prompt in "abcdefgh" for number in range(3)]
    assert grpo_order(every, 2, 0) == grpo_order(every, 2, 0)
    assert grpo_order(every, 2, 0) != grpo_order(every, 2, 1)


def test_recorded_order_counts_visits_of_a_prompt() -> None:
    every = [recorded(prompt, 5, sample=number) for number, prompt in enumerate(["a", "a", "b", "a", "b"])]
    assert [(item.epoch, item.sample_index) for item in recorded_order(every)] == [(1, 0), (1, 1), (1, 0), (2, 0), (2, 0)]


@settings(deadline=None, max_examples=60)
@given(
    st.lists(st.lists(st.integers(0, 300), min_size=1, max_size=5).filter(sum), min_size=1, max_size=20),
    st.integers(1, 6),
    st.integers(0, 3),
)
def test_nobody_learns_from_the_unfinished(lengths: list[list[int]], in_flight: int, choice: int) -> None:
    visits = [visit(recorded("p", *turns, sample=number)) for number, turns in enumerate(lengths)]
    policy = Scripted(lambda turn: (choice + len(turn.tool_returns)) % 3)
    routed = replay(visits, policy, world(100, 200, in_flight=in_flight))
    assert len(routed) == len(policy.learnt) == len(set(policy.learnt)) == len(lengths)
    started = list(policy.known)
    for number, identity in enumerate(started):
        assert identity not in policy.known[identity]
        assert number - len(policy.known[identity]) < in_flight
    assert all(sum(loads) < in_flight + 1 for loads in policy.loads)
    assert sum(len(item.decisions) for item in routed) == sum(len(turns) for turns in lengths) == len(policy.asked)
    assert all(item.regret_s >= -1e-9 for item in routed)


def test_the_policy_is_asked_with_what_is_known_then() -> None:
    policy = Scripted(lambda turn: 0)
    replay([visit(recorded("p", 10, 20, 30, payload=7))], policy, world(100))
    assert [(t.generated_tokens, t.context_tokens, len(t.tool_returns)) for t in policy.asked] == [
        (0, 100, 0),
        (10, 117, 1),
        (30, 144, 2),
    ]
    assert policy.asked[0].current is None
    assert policy.asked[1].current == policy.asked[2].current is not None


def test_regret_is_the_charge_above_the_best_single_bucket() -> None:
    place = world(100)
    costs = place.costs
    (stayed,) = replay([visit(recorded("p", 100, 100))], Scripted(lambda turn: 1), place)
    assert stayed.truth == 1
    assert stayed.regret_s == pytest.approx(0)
    (moved,) = replay([visit(recorded("p", 100, 100))], Scripted(lambda turn: len(turn.tool_returns)), place)
    urgency = costs.share_below(200)
    late = 100 * (urgency * (costs.step_s[0] - costs.step_s[1]) - costs.price_s[1])
    assert (moved.moves, moved.migrated_tokens) == (1, 250)
    assert moved.regret_s == pytest.approx(late + costs.move_s(1, 250))


def test_samples_of_a_group_are_in_flight_together() -> None:
    group = [visit(recorded("p", 10, 10, sample=number)) for number in range(3)]
    policy = Scripted(lambda turn: 0)
    replay(group, policy, world(100, in_flight=3))
    assert all(not known for known in policy.known.values())


def test_figures_count_what_they_say() -> None:
    place = world(100, 200)
    script = {"short": [0, 0], "late": [0, 1], "wrong": [0, 0], "twice": [0, 1, 2]}
    policy = Scripted(lambda turn: script[str(turn.prompt_id)][len(turn.tool_returns)])
    lengths = {"short": (50, 50), "late": (60, 60), "wrong": (90, 60), "twice": (90, 80, 80)}
    figures = figures_of(replay([visit(recorded(name, *tokens)) for name, tokens in lengths.items()], policy, place))
    assert figures.trajectories == 4
    assert figures.one_hop_accuracy == 0.5
    assert figures.decision_accuracy == pytest.approx(4 / 9)
    assert figures.moves_per_trajectory == 0.75
    assert figures.majority_one_hop == 0.5
    assert figures.majority_accuracy == pytest.approx(4 / 9)
    assert figures.tail_recall == pytest.approx(1 / 3)
    f1 = [2 * 2 / (2 + 6), 2 * 1 / (4 + 2), 2 * 1 / (3 + 1)]
    assert figures.macro_f1 == pytest.approx(sum(f1) / 3)
    assert figures.majority_f1 == pytest.approx(2 * 4 / (4 + 9) / 3)
    moved = (100 + 60 + 50) + (100 + 90 + 50) + (100 + 170 + 100)
    finished = (200 + 50) + (220 + 50) + (250 + 50) + (350 + 100)
    assert figures.migrated_share == pytest.approx(moved / finished)
