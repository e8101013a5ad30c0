"""The example of a simulated run."""

import pytest

from support.examples import example


def test_streaming_and_slack_shorten_the_wait_for_groups() -> None:
    simulation = example("simulate_a_run")
    means = [
        sum(report.t_iter_s for report in simulation.run(overrides, steps=12)[4:]) / 8 for overrides in simulation.WAYS.values()
    ]
    assert means == sorted(means, reverse=True)
    assert means[-1] == pytest.approx(0.7 * means[0], rel=0.15)
