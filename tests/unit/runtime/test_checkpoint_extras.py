"""What a checkpoint holds besides weights, and what a resumed session makes of it; trainer and store are stand-ins."""

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from libra_core.config import LibraConfig
from libra_core.errors import CheckpointError
from libra_core.planning.experience import CostBook, ErrorBook, Experience
from libra_core.planning.run_forecast import ForecastHistory, RecentMean
from libra_core.runtime.driver import clients, session
from libra_core.runtime.driver.clients import RunProgress, TrainerClient
from libra_core.runtime.rollout.admission import PromptCursor
from libra_core.types.transition import Tier, TransitionCost

CURSOR = PromptCursor(next_index=7, untrained=(3, 5))
HISTORY = ForecastHistory(train_error=RecentMean(total={"error": 0.5}, weight=1.0))
MEASURED = Experience(costs=CostBook(priors={}, measured={Tier.FLIP: (TransitionCost(drain_s=2.0),)}), errors=ErrorBook())
OLD = Path(__file__).with_name("data") / "progress_362dc83.json"
"""Of a real run of the quickstart at commit 362dc83, where each part was a dictionary. Its measured costs, of which that run had
none, were written by the functions of the same commit."""


class Ranks:
    """Keeps what is saved, through JSON."""

    def __init__(self) -> None:
        self.saved: dict[str, Any] = {}

    def call(self, method: str, *arguments: Any, deadline_s: float) -> list[Any]:
        if method == "save":
            self.saved = json.loads(json.dumps(arguments[1]))
        return [self.saved if method == "load" else 4]


@pytest.fixture
def ranks(monkeypatch: pytest.MonkeyPatch) -> Ranks:
    monkeypatch.setattr(clients, "ask", lambda *_: CURSOR)
    return Ranks()


def trainer(ranks: Ranks, run_dir: Path) -> TrainerClient:
    store = SimpleNamespace(cursor=SimpleNamespace(remote=lambda: None))
    return TrainerClient(LibraConfig(), run_dir, ranks, store)  # type: ignore[arg-type]


def test_each_checkpoint_holds_the_history_of_its_own_step(ranks: Ranks, tmp_path: Path) -> None:
    client, learnt = trainer(ranks, tmp_path), [HISTORY]
    client.progress = lambda cursor: RunProgress(cursor=cursor, forecast=learnt[-1])
    client.save(1)
    first = ranks.saved
    learnt.append(replace(HISTORY, train_error=RecentMean(total={"error": 0.25}, weight=2.0)))
    client.save(2)
    assert [saved["forecast"]["train_error"]["weight"] for saved in (first, ranks.saved)] == [1.0, 2.0]
    assert first["cursor"] == {"next_index": 7, "untrained": [3, 5]}


def test_a_resumed_session_finds_prompts_and_all_that_was_learnt(ranks: Ranks, tmp_path: Path) -> None:
    client = trainer(ranks, tmp_path)
    client.progress = lambda cursor: RunProgress(cursor=cursor, forecast=HISTORY, experience=MEASURED)
    client.save(4)
    assert session._restore(LibraConfig(), ranks, tmp_path) == (  # type: ignore[arg-type]
        4,
        RunProgress(cursor=CURSOR, forecast=HISTORY, experience=MEASURED),
    )


def test_a_checkpoint_without_history_resumes_without_one(ranks: Ranks, tmp_path: Path) -> None:
    trainer(ranks, tmp_path).save(4)
    assert session._restore(LibraConfig(), ranks, tmp_path)[1] == RunProgress(cursor=CURSOR)  # type: ignore[arg-type]


def test_a_checkpoint_of_the_code_before_is_read_and_written_as_it_was() -> None:
    extra = json.loads(OLD.read_text())["extra"]
    progress = RunProgress.from_json(extra)
    assert progress.cursor == PromptCursor(next_index=96, untrained=(90, 94))
    assert progress.forecast is not None
    assert progress.forecast.generated.mean["trajectories"] == pytest.approx(384.0)
    assert progress.experience is not None
    assert progress.experience.costs.measured[Tier.FLIP][0] == TransitionCost(drain_s=1.25, transfer_s=0.5, start_s=3.75)
    assert json.loads(json.dumps(progress.to_json())) == extra


AMOUNT = st.floats(0.0, 1e12, allow_nan=False)
COSTS = st.builds(TransitionCost, drain_s=AMOUNT, transfer_s=AMOUNT, start_s=AMOUNT)
MEANS = st.builds(lambda total, weight: RecentMean(total={"error": total}, weight=weight), AMOUNT, st.floats(0.5, 1e6))
PROGRESS = st.builds(
    RunProgress,
    cursor=st.builds(PromptCursor.after, st.sets(st.integers(0, 200))),
    forecast=st.none() | st.builds(ForecastHistory, train_error=MEANS, rollout_error=MEANS),
    experience=st.none()
    | st.builds(
        Experience,
        costs=st.dictionaries(st.sampled_from(Tier), st.lists(COSTS, max_size=3).map(tuple)).map(
            lambda measured: CostBook(priors={}, measured=measured)
        ),
        errors=st.builds(ErrorBook, total=AMOUNT, signed=AMOUNT, weight=AMOUNT),
    ),
)


@given(PROGRESS)
def test_whatever_a_run_has_learnt_comes_back_as_it_was(progress: RunProgress) -> None:
    assert RunProgress.from_json(json.loads(json.dumps(progress.to_json()))) == progress


@pytest.mark.parametrize(("part", "words"), [("forecast", "forecast history"), ("replanning", "measured costs")])
def test_a_damaged_part_is_refused_by_name(part: str, words: str) -> None:
    extra = json.loads(OLD.read_text())["extra"]
    with pytest.raises(CheckpointError, match=f"the {words} in the checkpoint (is|are) damaged .*resume from another checkpoint"):
        RunProgress.from_json(extra | {part: {"costs": 1}})
