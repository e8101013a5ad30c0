"""A group that lost samples is retried, trained in part or dropped, as configured."""

import pytest

from libra_core.config.rollout import RolloutConfig
from libra_core.runtime.group_runner import GroupVerdict, judge_group


@pytest.mark.parametrize(
    ("policy", "usable", "retries", "verdict"),
    [
        ("retry", 8, 0, GroupVerdict.COMPLETE),
        ("retry", 7, 0, GroupVerdict.RETRY),
        ("retry", 7, 2, GroupVerdict.PARTIAL),
        ("retry", 1, 2, GroupVerdict.DROP),
        ("partial", 7, 0, GroupVerdict.PARTIAL),
        ("partial", 1, 0, GroupVerdict.DROP),
        ("drop", 7, 0, GroupVerdict.DROP),
        ("drop", 8, 0, GroupVerdict.COMPLETE),
    ],
)
def test_verdict(policy: str, usable: int, retries: int, verdict: GroupVerdict) -> None:
    config = RolloutConfig().model_copy(update={"on_failed_group": policy, "max_group_retries": 2})
    assert judge_group(usable, 8, retries, config) is verdict
