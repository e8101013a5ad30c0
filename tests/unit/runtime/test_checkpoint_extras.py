"""What a checkpoint holds besides weights, and what a resumed session makes of it; trainer and store are stand-ins."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from libra_core.config import LibraConfig
from libra_core.runtime.driver import clients, session
from libra_core.runtime.driver.clients import TrainerClient
from libra_core.runtime.rollout.admission import PromptCursor

CURSOR = PromptCursor(next_index=7, untrained=(3, 5))


class Ranks:
    """Keeps what is saved, as JSON would."""

    def __init__(self) -> None:
        self.saved: dict[str, Any] = {}

    def call(self, method: str, *arguments: Any, deadline_s: float) -> list[Any]:
        if method == "save":
            self.saved = arguments[1]
        return [self.saved if method == "load" else 4]


@pytest.fixture
def ranks(monkeypatch: pytest.MonkeyPatch) -> Ranks:
    monkeypatch.setattr(clients, "ask", lambda *_: CURSOR)
    return Ranks()


def trainer(ranks: Ranks, run_dir: Path) -> TrainerClient:
    store = SimpleNamespace(cursor=SimpleNamespace(remote=lambda: None))
    return TrainerClient(LibraConfig(), run_dir, ranks, store)  # type: ignore[arg-type]


def test_each_checkpoint_holds_the_history_of_its_own_step(ranks: Ranks, tmp_path: Path) -> None:
    client, history = trainer(ranks, tmp_path), {"weight": 1.0}
    client.carry("forecast", lambda: dict(history))
    client.save(1)
    first = ranks.saved
    history["weight"] = 2.0
    client.save(2)
    assert (first["forecast"], ranks.saved["forecast"]) == ({"weight": 1.0}, {"weight": 2.0})
    assert first["cursor"] == {"next_index": 7, "untrained": (3, 5)}


def test_a_resumed_session_finds_prompts_and_all_that_was_carried(ranks: Ranks, tmp_path: Path) -> None:
    client = trainer(ranks, tmp_path)
    client.carry("forecast", lambda: {"weight": 1.0})
    client.carry("replanning", lambda: {"costs": {}})
    client.save(4)
    version, cursor, carried = session._restore(LibraConfig(), ranks, tmp_path)  # type: ignore[arg-type]
    assert (version, cursor) == (4, CURSOR)
    assert (carried["forecast"], carried["replanning"]) == ({"weight": 1.0}, {"costs": {}})


def test_a_checkpoint_without_history_resumes_without_one(ranks: Ranks, tmp_path: Path) -> None:
    trainer(ranks, tmp_path).save(4)
    assert "forecast" not in session._restore(LibraConfig(), ranks, tmp_path)[2]  # type: ignore[arg-type]
