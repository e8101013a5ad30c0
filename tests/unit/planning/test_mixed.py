from dataclasses import replace

import numpy as np
import pytest

from libra_core.planning.candidates import Choice, options_of, search_inputs
from libra_core.planning.confusion import ORACLE, RouterSkill
from libra_core.planning.mixed import FleetClass, MixedFleet, fleet_classes, interval_cost, planning_requests
from libra_core.planning.objective import MIXED, solve
from libra_core.planning.problem import Regime
from libra_core.planning.rollout_partition import EngineShare, Partition
from libra_core.planning.training_tree import Cuts, TrainLeaf
from libra_core.types.forecast import Mode
from libra_core.types.plan import TrainLayout
from support.planning import heavy_tailed, problem

SPLIT = Choice(
    leaf=TrainLeaf(layout=TrainLayout(dp=24), t_train_s=100.0, fixed_s=4.0, bytes_per_gpu=0.0),
    tp=8,
    engines=3,
    streamed=True,
    mode=Mode.ASYNCHRONOUS,
    publication_s=4.0,
)


def t_iter_s(classes: tuple[FleetClass, ...], regime: Regime) -> float:
    fleet = MixedFleet(classes=classes, batch_size=regime.batch, group_size=regime.group_size)
    return float(solve(options_of([SPLIT]).mixed(), {MIXED: fleet}, regime).t_iter_s[0])


@pytest.mark.parametrize("staleness", [0, 1, 4])
def test_one_class_is_a_homogeneous_fleet(staleness: int) -> None:
    asked = problem(48, 256, staleness=staleness, lengths=heavy_tailed(256).resampled(256))
    inputs = search_inputs(asked, Cuts())
    shares = tuple(EngineShare(tp=8, first=first, last=last) for first, last in ((0, 84), (85, 170), (171, 255)))
    classes = fleet_classes(Partition(makespan_s=1.0, shares=shares), asked.lengths, asked.costs.engines, asked.regime, ORACLE)
    plain = solve(options_of([SPLIT]), inputs.curves, asked.regime)
    assert t_iter_s(classes, asked.regime) == pytest.approx(float(plain.t_iter_s[0]), rel=0.005)


@pytest.mark.parametrize("classes", [1, 2, 3, 4])
def test_confusion_loses_no_trajectory(classes: int) -> None:
    matrix = RouterSkill(accuracy=0.8, tail_recall=0.6).confusion(classes)
    assert matrix.sum(axis=1) == pytest.approx(np.ones(classes))
    assert matrix[-1, -1] == (0.6 if classes > 1 else 1.0)


def test_missed_tail_is_served_on_small_engines_and_costs_time() -> None:
    asked = problem(48, 256, staleness=0)
    small = tuple(EngineShare(tp=1, first=28 * index, last=28 * index + 27) for index in range(8))
    partition = Partition(
        makespan_s=1.0, shares=(*small, EngineShare(tp=8, first=224, last=239), EngineShare(tp=8, first=240, last=255))
    )
    times = []
    for recall in (1.0, 0.9, 0.5):
        skill = RouterSkill(accuracy=1.0, tail_recall=recall)
        classes = fleet_classes(partition, asked.lengths, asked.costs.engines, asked.regime, skill)
        assert sum(item.share for item in classes) == pytest.approx(1.0)
        times.append(t_iter_s(classes, asked.regime))
    assert times == sorted(times)
    assert times[-1] > times[0]


def test_each_planning_request_stands_for_its_share_of_the_batch() -> None:
    asked = problem(48, 2048, lengths=heavy_tailed(2048))
    whole = replace(asked.regime, batch=512)
    requests = planning_requests(asked.lengths, asked.regime)
    many = interval_cost(asked.costs.engines, requests, asked.regime)
    few = interval_cost(asked.costs.engines, requests, whole)
    first, last = np.array([0]), np.array([255])
    assert len(requests) == 384
    assert few(8, first, last)[0] < many(8, first, last)[0] < 4.5 * few(8, first, last)[0]
