"""The share of the variance of lengths that is the prompt's, learnt online."""

import random

import pytest

from libra_core.routing.agreement import PRIOR_RATIO, PromptAgreement
from libra_core.routing.prefix_tree import PrefixTree
from libra_core.types.ids import PromptId
from support.routing import finished


def agreement(own_share: float, *, prompts: int = 300, samples: int = 8, seed: int = 0) -> PromptAgreement:
    """Learnt from log-normal lengths of which `own_share` of the variance is the prompt's."""
    draw = random.Random(seed)
    hardness = [draw.gauss(0, own_share**0.5) for _ in range(prompts)]
    sums = [(0, 0)] * prompts
    found = PromptAgreement()
    for _ in range(samples):
        for prompt in range(prompts):
            tokens = round(1000 * 2.718 ** (hardness[prompt] + draw.gauss(0, (1 - own_share) ** 0.5)))
            count, total = sums[prompt]
            found.learn(tokens, total / count if count else None)
            sums[prompt] = (count + 1, total + tokens)
    return found


def test_nothing_known_is_the_prior() -> None:
    assert PromptAgreement().ratio == pytest.approx(PRIOR_RATIO)
    once = PromptAgreement()
    for number in range(100):
        once.learn(100 + number, None)
    assert once.ratio == pytest.approx(PRIOR_RATIO)


@pytest.mark.parametrize("share", [0.4, 0.6, 0.8])
def test_the_ratio_is_that_of_the_variances(share: float) -> None:
    assert agreement(share).ratio == pytest.approx((1 - share) / share, rel=0.3)


def test_prompts_that_say_nothing_are_believed_no_more_than_before() -> None:
    assert agreement(0.0).ratio == PRIOR_RATIO


def test_equal_lengths_say_nothing() -> None:
    same = PromptAgreement()
    for _ in range(50):
        same.learn(100, 100.0)
    assert same.ratio == pytest.approx(PRIOR_RATIO)


def test_merging_weighs_by_what_each_has_seen() -> None:
    much, little = agreement(0.8, prompts=400), agreement(0.2, prompts=10, samples=2)
    before = much.ratio
    much.merge(little)
    assert much.ratio == pytest.approx(before, rel=0.1)


def test_a_tree_believes_a_visit_more_where_samples_agree() -> None:
    """Prompts of their own length each, against prompts that are alike: a first sample of 20,000 tokens says more in one."""
    means: list[float] = []
    for own in (True, False):
        draw, tree = random.Random(1), PrefixTree()
        for sample in range(4):
            for prompt in range(100):
                length = 10 * 2 ** (prompt % 8) if own else 10 * 2 ** draw.randrange(8)
                tree.learn(finished([length], prompt=f"p{prompt}", name=f"{prompt}/{sample}"))
        tree.learn(finished([20_000], prompt="fresh", name="fresh"))
        means.append(tree.predict(tree.start(PromptId("fresh"))).mean)
    assert means[0] > 1.5 * means[1]
    assert means[1] < 10_500
