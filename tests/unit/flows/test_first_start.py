"""Prefect's database: made by the first to come, who are then followed by all others at once."""

import shutil
from collections import namedtuple
from pathlib import Path
from threading import Barrier, Event, Thread

import pytest

from flows.processes.first_start import one_makes_the_database
from libra_core.errors import ResourceError

Usage = namedtuple("Usage", "total used free")


def test_the_first_start_is_alone_and_the_others_follow_side_by_side(tmp_path: Path) -> None:
    started: list[str] = []
    first_is_in, others_come, together = Event(), Barrier(3), Barrier(2)

    def first() -> None:
        with one_makes_the_database(tmp_path):
            first_is_in.set()
            others_come.wait(10)
            started.append("first")

    def other() -> None:
        assert first_is_in.wait(10)
        others_come.wait(10)
        with one_makes_the_database(tmp_path):
            together.wait(10)  # breaks unless both are inside
            started.append("other")

    threads = [Thread(target=first), Thread(target=other), Thread(target=other)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert started == ["first", "other", "other"]


def test_a_start_that_failed_leaves_the_database_to_the_next(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError), one_makes_the_database(tmp_path):
        raise RuntimeError("the server did not start")
    assert not list(tmp_path.glob(".database-of-prefect-*"))
    with one_makes_the_database(tmp_path):
        pass
    assert list(tmp_path.glob(".database-of-prefect-*"))


def test_a_home_without_room_is_a_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _: Usage(100, 100, 0))
    with pytest.raises(ResourceError, match="has 0 MiB free, and Prefect's database needs 32"), one_makes_the_database(tmp_path):
        pass
