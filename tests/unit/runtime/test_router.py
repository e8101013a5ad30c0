"""The run's router: limits that follow the lengths, counts, and a tree that survives the run."""

import asyncio
import math
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from libra_core.config.loading import validate_config
from libra_core.errors import ConfigError
from libra_core.routing.buckets import Buckets
from libra_core.routing.tree_file import load_tree
from libra_core.runtime.rollout.kv_moves import MoveWork
from libra_core.runtime.rollout.router import Ending, FleetRouter, accuracy, tail_recall, tree_path
from libra_core.types.ids import EngineId
from support.routing import OK, TIMEOUT, engine, finished, turn

FLEET = [engine("a", 0, capacity=64), engine("b", 1, capacity=64)]


def router(folder: Path, *, resumed: Path | None = None, connector: str | None = None, **routing: Any) -> FleetRouter:
    asked = {"policy": "cmlfq", "limit_quantiles": [0.4], **routing}
    rollout = {"engines": [{"tp": 1, "count": 2}, {"tp": 2}], "kv_transfer": {"connector": connector}}
    config = validate_config({"rollout": rollout, "routing": asked})
    return FleetRouter(config, laws=None, folder=folder, resumed=resumed)


def teach(target: FleetRouter, count: int, *, generated: int = 30) -> None:
    async def claim() -> None:
        for number in range(count):
            target.learn(finished([5, generated], [OK], name=f"t{number}"))
            target.learn(finished([5, 50 * generated + 40 * number], [TIMEOUT], name=f"u{number}"))

    asyncio.run(claim())


def test_learning_waits_for_the_event_loop(tmp_path: Path) -> None:
    target = router(tmp_path)

    async def claim() -> None:
        target.learn(finished([5]))
        assert target.report().tree_nodes == 2
        await asyncio.sleep(0)
        assert target.report().tree_nodes > 2

    asyncio.run(claim())


def test_limits_follow_the_lengths_unless_they_are_given(tmp_path: Path) -> None:
    free, given = router(tmp_path), router(tmp_path, limits_tokens=[1000], limit_quantiles=None)
    for target in (free, given):
        teach(target, 40)
    state = turn(current="a", returns=[TIMEOUT], generated=5, context=4000)
    assert free.choose(state, FLEET) == "b", "1,505 tokens are beyond the quantile's 35"
    assert given.choose(state, FLEET) == "b"
    assert router(tmp_path).choose(state, FLEET) == "a", "nothing learnt, nothing moved"


@pytest.mark.parametrize(("connector", "chosen"), [(None, "b"), ("shared_folder", "a")])
def test_moves_are_charged_what_hand_overs_take_where_there_are_any(tmp_path: Path, connector: str | None, chosen: str) -> None:
    target = router(tmp_path, connector=connector)
    for _ in range(20):
        target.note_work(MoveWork(tp=2, context_tokens=100, loaded_tokens=96, computed_tokens=4, seconds=100.0))
    teach(target, 40)
    assert target.choose(turn(current="a", returns=[TIMEOUT], generated=5, context=4000), FLEET) == chosen


def test_the_tree_survives_the_run(tmp_path: Path) -> None:
    first = router(tmp_path)
    teach(first, 50)
    asyncio.run(first.save())
    second = router(tmp_path / "second", resumed=tmp_path)
    state = turn(current="a", returns=[TIMEOUT], generated=5, context=4000)
    assert second.choose(state, FLEET) == first.choose(state, FLEET) == "b"
    assert second.report().tree_nodes == first.report().tree_nodes


def test_a_damaged_tree_costs_its_memory_and_a_line_of_the_log(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    first = router(tmp_path)
    teach(first, 5)
    asyncio.run(first.save())
    tree_path(tmp_path).write_bytes(b"rubbish")
    assert router(tmp_path, resumed=tmp_path).report().tree_nodes == 2
    assert "no prefix tree or is damaged" in caplog.text


def test_a_folder_that_cannot_be_written_does_not_end_the_run(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "routing").write_text("in the way")
    target = router(tmp_path)
    teach(target, 3)
    asyncio.run(target.save())
    assert "could not be written" in caplog.text


def test_saving_is_rare_and_only_when_something_was_learnt(tmp_path: Path) -> None:
    target = router(tmp_path)
    asyncio.run(target.save())
    assert not tree_path(tmp_path).exists()
    teach(target, 1)
    asyncio.run(target.save())
    written = tree_path(tmp_path).stat().st_mtime_ns
    teach(target, 1)
    asyncio.run(target.save())
    assert tree_path(tmp_path).stat().st_mtime_ns == written
    asyncio.run(target.save(at_once=True))
    assert tree_path(tmp_path).stat().st_mtime_ns > written


def test_the_tree_is_saved_at_the_end_although_the_threads_of_tools_have_ended(tmp_path: Path) -> None:
    target = router(tmp_path)
    teach(target, 1)

    async def end_of_a_run() -> None:
        threads = ThreadPoolExecutor(1)
        asyncio.get_running_loop().set_default_executor(threads)
        threads.shutdown()
        await target.save(at_once=True)

    asyncio.run(end_of_a_run())
    assert tree_path(tmp_path).exists()


def test_a_save_that_is_cancelled_at_the_end_does_not_write_beside_the_last_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = router(tmp_path)
    teach(target, 1)
    began, go_on = threading.Event(), threading.Event()
    writers: list[str] = []

    def slow_disk(_file: int) -> None:
        writers.append("in")
        began.set()
        assert go_on.wait(10)
        writers.append("out")

    async def end_of_a_run() -> None:
        saving = asyncio.create_task(target.save())
        await asyncio.to_thread(began.wait, 10)
        saving.cancel()
        await asyncio.gather(saving, return_exceptions=True)
        target.learn(finished([7], name="late"))
        threading.Timer(0.1, go_on.set).start()
        target.learn_finished()
        await target.save(at_once=True)

    monkeypatch.setattr("libra_core.routing.tree_file.os.fsync", slow_disk)
    asyncio.run(end_of_a_run())
    assert writers == ["in", "out", "in", "out"]
    assert load_tree(tree_path(tmp_path)).learnt == 3


def test_a_report_counts_since_the_last_one(tmp_path: Path) -> None:
    target = router(tmp_path)
    target.choose(turn(), FLEET)
    target.note_move(turn(context=100))
    target.note_first_token(0.5)
    target.note_work(MoveWork(tp=1, context_tokens=100, loaded_tokens=96, computed_tokens=4, seconds=0.25))
    target.note_work(MoveWork(tp=1, context_tokens=100, loaded_tokens=0, computed_tokens=68, seconds=2.0))
    target.note_ahead(0.25)
    target.note_end(finished([10]), 1, 400)
    report = target.report()
    assert (report.decisions, report.moves, report.moved_tokens, report.ahead) == (1, 1, 100, 1)
    assert (report.moved_fraction, report.moved_first_token_s, report.ahead_s) == (0.25, 0.5, 0.25)
    assert (report.handed_over_tokens, report.handover_s) == (96, 0.25)
    assert (report.reprefilled_tokens, report.reprefill_s) == (72, 2.0)
    assert target.report().moves == 0


def test_accuracy_and_tail_recall() -> None:
    buckets = Buckets(degrees=(1, 2), limits=(100.0, math.inf))
    endings = [Ending(generated_tokens=50, bucket=0, moves=0)] * 8
    endings += [Ending(generated_tokens=500, bucket=1, moves=1), Ending(generated_tokens=600, bucket=1, moves=2)]
    assert accuracy(endings, buckets) == 0.9
    assert tail_recall(endings, 2) == 1.0
    assert tail_recall([*endings[:9], Ending(generated_tokens=900, bucket=0, moves=0)], 2) == 0.0
    assert math.isnan(accuracy([], buckets))
    assert math.isnan(tail_recall(endings, 1))


def test_a_name_alone_chooses_the_policy() -> None:
    mixed = {"engines": [{"tp": 1}, {"tp": 2}]}
    assert validate_config({"routing": "cmlfq", "rollout": mixed}).routing.policy == "cmlfq"


@pytest.mark.parametrize("policy", ["cmlfq", "mlfq", "presorted"])
def test_a_policy_that_tells_degrees_apart_is_refused_where_there_is_one(policy: str) -> None:
    with pytest.raises(ConfigError, match=rf"routing\.policy = {policy} chooses among engines of several tp"):
        validate_config({"routing": policy})
    assert validate_config({"routing": "sticky"}).routing.policy == "sticky"


@pytest.mark.parametrize(
    ("routing", "words"),
    [
        ({"limits_tokens": [10, 20]}, "routing.limits_tokens has 2 values"),
        ({"limit_quantiles": [0.5]}, "routing.limit_quantiles has 1 values"),
        ({"limits_tokens": [20, 10]}, "ascend"),
        ({"limit_quantiles": [1.5]}, "shares below 1"),
        ({"policy": "oracle"}, "policy"),
    ],
)
def test_routing_that_cannot_be_is_refused(routing: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        validate_config({"routing": routing})


def test_an_engine_id_that_is_gone_falls_back(tmp_path: Path) -> None:
    assert router(tmp_path).choose(turn(current="gone", returns=[OK]), FLEET) in {EngineId("a"), EngineId("b")}
