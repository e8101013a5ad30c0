"""What the prefix tree says of the tokens that are left."""

import random
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from libra_core.errors import ConfigError
from libra_core.ports.routing import FinishedTrajectory
from libra_core.routing.prefix_tree import PrefixTree
from libra_core.routing.residual import Residual
from libra_core.routing.tree_settings import TreeSettings
from libra_core.types.ids import PromptId
from libra_core.types.trajectory import ToolOutcome
from support.routing import OK, TIMEOUT, finished, outcome

KEEP_ALL = TreeSettings(half_life=None)


def predict(tree: PrefixTree, prompt: str = "p", returns: tuple[ToolOutcome, ...] = ()) -> Residual:
    cursor = tree.start(PromptId(prompt))
    for done in returns:
        tree.advance(cursor, done)
    return tree.predict(cursor)


def test_samples_of_one_prompt_diverge_at_a_tool_timeout() -> None:
    tree = PrefixTree()
    for _ in range(8):
        tree.learn(finished([20, 30], [OK]))
        tree.learn(finished([20, 6000], [TIMEOUT]))
    after_ok, after_timeout = predict(tree, returns=(OK,)), predict(tree, returns=(TIMEOUT,))
    assert after_ok.quantile(0.5) < 100 < 3000 < after_timeout.quantile(0.5)
    assert after_timeout.mean > 4 * after_ok.mean


def test_order_of_tool_returns_is_part_of_the_state() -> None:
    tree, big = PrefixTree(), outcome(tokens=5000)
    for _ in range(20):
        tree.learn(finished([10, 10, 40], [OK, big]))
        tree.learn(finished([10, 10, 4000], [big, OK]))
        tree.learn(finished([10, 10, 40], [OK, OK]))
    assert predict(tree, returns=(big, OK)).mean > 5 * predict(tree, returns=(OK, OK)).mean


def test_number_of_turns_is_part_of_the_state() -> None:
    tree = PrefixTree()
    for _ in range(20):
        tree.learn(finished([100] * 10))
    means = [predict(tree, returns=(OK,) * turns).mean for turns in range(10)]
    assert means == sorted(means, reverse=True)
    assert means[9] < 250 < 700 < means[0]


def test_an_unknown_prompt_falls_back_to_all_prompts() -> None:
    tree = PrefixTree()
    for number in range(200):
        tree.learn(finished([100, 400], [OK], prompt=f"p{number}"))
    assert predict(tree, "never seen").mean == pytest.approx(500, rel=0.1)
    assert predict(tree, "never seen", (OK,)).mean == pytest.approx(400, rel=0.1)


def test_an_unknown_tool_return_falls_back_to_the_turn() -> None:
    tree = PrefixTree()
    for _ in range(100):
        tree.learn(finished([100, 400], [OK]))
    assert predict(tree, "p", (outcome(tool="never seen"),)).mean == pytest.approx(400, rel=0.1)


def test_one_visit_does_not_overrule_five_hundred_above_it() -> None:
    tree = PrefixTree(KEEP_ALL)
    for number in range(500):
        tree.learn(finished([100], prompt=f"p{number}"))
    tree.learn(finished([20_000], prompt="odd"))
    assert predict(tree, "odd").quantile(0.5) < 200

    tree = PrefixTree(KEEP_ALL)
    for _ in range(500):
        tree.learn(finished([10, 100], [OK]))
    tree.learn(finished([10, 20_000], [TIMEOUT]))
    assert predict(tree, returns=(TIMEOUT,)).quantile(0.5) < 200


def test_many_visits_do_overrule() -> None:
    tree = PrefixTree(KEEP_ALL)
    for number in range(500):
        tree.learn(finished([100], prompt=f"p{number}"))
    for _ in range(40):
        tree.learn(finished([20_000], prompt="odd"))
    assert predict(tree, "odd").quantile(0.5) > 15_000


def test_nothing_learnt_means_no_evidence() -> None:
    residual = predict(PrefixTree())
    assert residual.evidence == 0
    assert float(residual.shares.sum()) == pytest.approx(1)


def _error_after_shift(half_life: float | None, after: int) -> float:
    """Relative error of the predicted mean, `after` trajectories past a jump from 200 to 2,000 tokens."""
    tree = PrefixTree(TreeSettings(half_life=half_life))
    for number in range(2000):
        tree.learn(finished([200], prompt=f"p{number % 50}"))
    for number in range(after):
        tree.learn(finished([2000], prompt=f"p{number % 50}"))
    return abs(predict(tree, "new prompt").mean - 2000) / 2000


def test_error_after_a_shift_halves_with_each_half_life_and_stays_without_forgetting() -> None:
    before, forgetting = _error_after_shift(100, 1), [_error_after_shift(100, after) for after in (100, 200, 400)]
    assert forgetting[0] <= 0.55 * before
    assert forgetting == sorted(forgetting, reverse=True)
    assert forgetting[2] < 0.1
    assert _error_after_shift(None, 100) > 0.8 > forgetting[0]


def test_rebasing_the_weights_changes_no_prediction() -> None:
    tree = PrefixTree(TreeSettings(half_life=5.0))
    for number in range(90):
        tree.learn(finished([100 + number, 50], prompt=f"p{number % 3}"))
    before = predict(tree, "p1", (OK,))
    tree.rebase()
    after = predict(tree, "p1", (OK,))
    assert after.mean == pytest.approx(before.mean, rel=1e-5)
    assert after.evidence == pytest.approx(before.evidence, rel=1e-5)
    assert tree.unit == 1.0


def test_half_lives_shorter_than_a_trajectory_overflow_nothing() -> None:
    tree = PrefixTree(TreeSettings(half_life=0.5))
    for number in range(2000):
        tree.learn(finished([number + 1]))
    assert np.isfinite(tree.table.rows).all()
    assert predict(tree).evidence == pytest.approx(1 / 3, rel=1e-3)


@pytest.mark.parametrize("tokens", [0, 1, 10**9])
def test_any_payload_has_a_class(tokens: int) -> None:
    tree = PrefixTree()
    for _ in range(20):
        tree.learn(finished([10, 70], [outcome(tokens=tokens)]))
    assert predict(tree, returns=(outcome(tokens=tokens),)).mean == pytest.approx(70, rel=0.2)


def test_empty_small_and_large_payloads_are_different_events() -> None:
    tree = PrefixTree()
    labels = {tree.events.label(outcome(tokens=tokens)) for tokens in (0, 1, 101, 1001, 10_001)}
    assert len(labels) == 5
    assert tree.events.label(outcome(tokens=100)) == tree.events.label(outcome(tokens=1))


def test_ten_thousand_turns_stay_bounded_and_need_no_recursion() -> None:
    tree = PrefixTree(TreeSettings(max_nodes=2000))
    for _ in range(3):
        tree.learn(finished([3] * 10_000))
    assert len(tree.table) < 500
    cursor = tree.start(PromptId("p"))
    for _ in range(9999):
        tree.advance(cursor, OK)
    assert 0 <= tree.predict(cursor).mean < 6000


@pytest.mark.parametrize("prompts", [50_000, pytest.param(1_000_000, marks=pytest.mark.slow)])
def test_any_number_of_prompts_stays_bounded(prompts: int) -> None:
    tree = PrefixTree(TreeSettings(max_nodes=20_000))
    rng = random.Random(0)
    for number in range(prompts):
        tree.learn(finished([rng.randrange(100, 900)], prompt=f"p{number}"))
    assert len(tree.table) <= 20_000
    assert len(tree.table.children) <= 20_000
    assert len(tree.roots) <= 20_000
    assert tree.table.rows.nbytes < 40_000 * 200
    assert predict(tree, "p3").mean == pytest.approx(500, rel=0.1)


def test_eviction_keeps_what_was_visited_most() -> None:
    tree = PrefixTree(TreeSettings(max_nodes=400, half_life=None))
    for number in range(3000):
        tree.learn(finished([50, 50], prompt=f"once{number}"))
        if number % 10 == 0:
            tree.learn(finished([3000, 3000], prompt="often"))
    assert predict(tree, "often").mean > 4500
    parents = tree.table.parents()
    assert (parents < np.arange(len(tree.table))).all()


def test_live_cursors_survive_an_eviction() -> None:
    tree = PrefixTree(TreeSettings(max_nodes=300))
    for _ in range(20):
        tree.learn(finished([10, 700, 5], [TIMEOUT, OK]))
    cursor = tree.start(PromptId("p"))
    tree.advance(cursor, TIMEOUT)
    before = tree.predict(cursor).mean
    for number in range(200):
        tree.learn(finished([10, 700, 5], [TIMEOUT, OK], prompt=f"other{number}"))
    assert tree.predict(cursor).mean == pytest.approx(before, rel=0.2)
    assert tree.predict(cursor).mean == pytest.approx(predict(tree, returns=(TIMEOUT,)).mean)


def test_more_kinds_of_tools_than_allowed_share_one() -> None:
    tree = PrefixTree(TreeSettings(max_events=10))
    labels = [tree.events.label(outcome(tool=f"tool{number}")) for number in range(30)]
    assert len(set(labels[:10])) == 10
    assert set(labels[10:]) == {0}


def test_a_sibling_that_ends_meanwhile_informs_a_running_trajectory() -> None:
    tree = PrefixTree(KEEP_ALL)
    for number in range(50):
        tree.learn(finished([10, 50], [OK], prompt=f"p{number}"))
    cursor = tree.start(PromptId("fresh"))
    tree.advance(cursor, OK)
    before = tree.predict(cursor).mean
    for _ in range(6):
        tree.learn(finished([10, 9000], [OK], prompt="fresh"))
    assert tree.predict(cursor).mean > 10 * before


trajectories = st.lists(
    st.tuples(
        st.sampled_from(["a", "b", "c"]),
        st.lists(st.integers(min_value=0, max_value=50_000), min_size=1, max_size=6),
        st.lists(st.sampled_from([OK, TIMEOUT, outcome(tokens=3000)]), min_size=5, max_size=5),
    ),
    min_size=1,
    max_size=25,
)


def _all(samples: list[tuple[str, list[int], list[ToolOutcome]]]) -> list[FinishedTrajectory]:
    return [finished(tokens, returns[: len(tokens) - 1], prompt=prompt) for prompt, tokens, returns in samples]


@settings(max_examples=40, deadline=None)
@given(trajectories, st.sampled_from([None, 3.0]))
def test_every_prediction_is_a_distribution_within_what_was_seen(
    samples: list[tuple[str, list[int], list[ToolOutcome]]], half_life: float | None
) -> None:
    tree = PrefixTree(TreeSettings(half_life=half_life))
    for done in _all(samples):
        tree.learn(done)
    for done in _all(samples):
        residual = predict(tree, done.prompt_id, tuple(done.tool_returns))
        assert float(residual.shares.sum()) == pytest.approx(1, rel=1e-4)
        assert (residual.shares >= -1e-9).all()
        assert residual.quantile(0.1) <= residual.quantile(0.5) <= residual.quantile(0.9)
        assert residual.mean >= 0


@settings(max_examples=30, deadline=None)
@given(trajectories, trajectories)
def test_merging_shards_counts_what_either_has_seen(
    first: list[tuple[str, list[int], list[ToolOutcome]]], second: list[tuple[str, list[int], list[ToolOutcome]]]
) -> None:
    """States by turn and last return are exact; those by all returns grow by visits of one tree, so only weights agree."""
    left, right, whole = PrefixTree(KEEP_ALL), PrefixTree(KEEP_ALL), PrefixTree(KEEP_ALL)
    for done in _all(first):
        left.learn(done)
        whole.learn(done)
    for done in _all(second):
        right.learn(done)
        whole.learn(done)
    left.merge(right)
    assert left.learnt == whole.learnt
    left.agreement = whole.agreement  # samples of a prompt in different shards were never compared
    for prompt in ("a", "b", "c", "unseen"):
        assert predict(left, prompt).mean == pytest.approx(predict(whole, prompt).mean, rel=1e-4, abs=1e-4)
        np.testing.assert_allclose(predict(left, prompt).shares, predict(whole, prompt).shares, atol=1e-5)


def test_trees_of_different_settings_do_not_merge() -> None:
    with pytest.raises(ConfigError, match="different settings"):
        PrefixTree(KEEP_ALL).merge(PrefixTree(replace(KEEP_ALL, max_nodes=500)))


@pytest.mark.parametrize(("change", "words"), [({"half_life": 0.0}, "half-life"), ({"max_nodes": 3}, "at least 16")])
def test_settings_that_cannot_be_are_refused(change: dict[str, float], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        TreeSettings(**change)  # type: ignore[arg-type]
