"""Which runs can have hybrid replicas, and which can divide their engines anew."""

from typing import Any

import pytest

from libra_core.config.loading import validate_config
from libra_core.errors import ConfigError

HYBRID: dict[str, Any] = {"elastic": {"hybrid_replicas": 1}, "rollout": {"engines": [{"tp": 1, "count": 3}]}}


def test_a_replica_takes_whole_engines() -> None:
    assert validate_config(HYBRID).hybrid_engines == 1
    assert validate_config({**HYBRID, "training": {"layout": {"pp": 2}}}).hybrid_engines == 2
    assert validate_config({}).hybrid_engines == 0


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"rollout": {"engines": [{"tp": 1, "count": 1}]}}, "leave one that always serves"),
        ({"rollout": {"engines": [{"tp": 1, "count": 2}, {"tp": 2, "count": 1}]}}, "of one tp"),
        ({"rollout": {"engines": [{"tp": 2, "count": 2}]}}, "must be whole engines"),
        ({"rollout": {"engines": [{"tp": 1, "count": 3}], "mode": "colocated"}}, "does not go with rollout.mode = colocated"),
        ({"elastic": {}, "replanning": {"every_steps": 5}}, "nothing to move without hybrid replicas or re-partition"),
    ],
)
def test_a_pool_that_cannot_change_sides_is_refused(changes: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        validate_config(HYBRID | changes)


DIVIDED: dict[str, Any] = {"replanning": {"repartition": True, "every_steps": 5}, "rollout": {"engines": [{"tp": 1, "count": 2}]}}


@pytest.mark.parametrize(
    "engines", [[{"tp": 1, "count": 2}], [{"tp": 2, "count": 1}], [{"tp": 1, "count": 1}, {"tp": 1, "count": 1}]]
)
def test_engines_of_one_degree_are_divided_anew_without_any_hybrid(engines: list[dict[str, int]]) -> None:
    assert validate_config(DIVIDED | {"rollout": {"engines": engines}}).replanning.repartition


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"elastic": {"hybrid_replicas": 1}}, "does not go with elastic.hybrid_replicas = 1: engines of hybrid replicas keep"),
        ({"rollout": {"engines": [{"tp": 1, "count": 2}, {"tp": 2}]}}, "a mixed fleet has no forecast"),
        ({"rollout": {"engines": [{"tp": 1}]}}, "can only be one engine of tp 1"),
        ({"rollout": {"engines": [{"tp": 1, "count": 3}], "mode": "colocated"}}, "does not go with rollout.mode = colocated"),
    ],
)
def test_a_fleet_that_cannot_be_divided_anew_is_refused(changes: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        validate_config(DIVIDED | changes)
