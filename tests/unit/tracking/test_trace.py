import json
from pathlib import Path
from typing import Any

from libra_core.tracking.trace import FILE_NAME, TraceWriter
from libra_core.types.trace import TraceSpan


def _span(lane: str, start_s: float) -> TraceSpan:
    return TraceSpan(name="decode", lane=lane, start_s=start_s, end_s=start_s + 5.0)


def _read(folder: Path) -> list[dict[str, Any]]:
    return json.loads((folder / FILE_NAME).read_text())


def test_closed_trace_is_a_json_array_of_events(tmp_path: Path) -> None:
    writer = TraceWriter(tmp_path)
    writer.append([_span("engine-1", 0.0), _span("engine-1", 5.0)])
    writer.append([])
    writer.append([_span("trainer", 1.0)])
    writer.close()
    spans = [event for event in _read(tmp_path) if event["ph"] == "X"]
    assert [event["ts"] for event in spans] == [0.0, 5.0e6, 1.0e6]
    assert [(event["dur"], event["cat"]) for event in spans] == [(5.0e6, "engine"), (5.0e6, "engine"), (5.0e6, "trainer")]


def test_empty_trace_is_valid(tmp_path: Path) -> None:
    TraceWriter(tmp_path).close()
    assert _read(tmp_path) == []


def test_named_lanes_become_numbers_with_a_name_each(tmp_path: Path) -> None:
    writer = TraceWriter(tmp_path)
    writer.append([_span("engine-0", 0.0), _span("trainer", 1.0), _span("engine-0", 2.0)])
    writer.close()
    events = _read(tmp_path)
    names = {event["tid"]: event["args"]["name"] for event in events if event["ph"] == "M"}
    assert names == {1: "engine-0", 2: "trainer"}
    assert [event["tid"] for event in events if event["ph"] == "X"] == [1, 2, 1]


def test_resumed_trace_goes_on_after_a_crash(tmp_path: Path) -> None:
    writer = TraceWriter(tmp_path)
    writer.append([_span("trainer", 0.0)])
    with (tmp_path / FILE_NAME).open("a") as file:
        file.write(',\n{"name": "cut o')
    resumed = TraceWriter(tmp_path)
    resumed.append([_span("trainer", 1.0)])
    resumed.close()
    assert [event["ph"] for event in _read(tmp_path)] == ["M", "X", "X"]


def test_closed_trace_can_be_resumed(tmp_path: Path) -> None:
    TraceWriter(tmp_path).close()
    resumed = TraceWriter(tmp_path)
    resumed.append([_span("trainer", 1.0)])
    resumed.close()
    assert len(_read(tmp_path)) == 2
