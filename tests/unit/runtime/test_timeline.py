"""Interval arithmetic agrees with counting seconds one by one."""

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from libra_core.runtime.base.time_breakdown import BusyClock, clipped, intersection, merged, total_s

Intervals = list[tuple[float, float]]
intervals = st.lists(st.tuples(st.integers(0, 40), st.integers(0, 40)).map(lambda p: (float(min(p)), float(max(p)))), max_size=8)


def seconds(spans: Intervals) -> set[int]:
    return {second for start, end in spans for second in range(int(start), int(end))}


@given(intervals)
def test_merged_covers_the_same_seconds_without_overlap(spans: Intervals) -> None:
    result = merged(spans)
    assert seconds(result) == seconds(spans)
    assert all(a[1] < b[0] for a, b in pairwise(result))


@given(intervals, intervals)
def test_intersection_is_the_common_seconds(first: Intervals, second: Intervals) -> None:
    assert seconds(intersection(merged(first), merged(second))) == seconds(first) & seconds(second)


@given(intervals)
def test_clipping_leaves_what_lies_in_the_window(spans: Intervals) -> None:
    assert total_s(clipped(spans, (10.0, 20.0))) == len(seconds(spans) & set(range(10, 20)))


def test_busy_clock_spans_overlapping_work() -> None:
    clock = BusyClock()
    clock.enter(1.0)
    clock.enter(2.0)
    clock.leave(3.0)
    clock.leave(5.0)
    clock.enter(8.0)
    assert clock.intervals(9.0) == [(1.0, 5.0), (8.0, 9.0)]
