"""When the parts of a publication happen and where its failures surface; trainer, fleet and Ray calls are stand-ins."""

import math
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import ray
from hypothesis import given, settings
from hypothesis import strategies as st
from ray.exceptions import GetTimeoutError

from libra_core.config import LibraConfig
from libra_core.errors import DeadlineError, LibraError, NumericsError, ResourceError
from libra_core.runtime.base.rpc import ask
from libra_core.runtime.driver import weight_publisher as publisher
from libra_core.runtime.driver.rollout_client import RolloutClient
from libra_core.runtime.driver.weight_publisher import WeightPublisher
from libra_core.runtime.rollout.weights import PublicationOrder, Published
from libra_core.types.ids import EngineId, PolicyVersion
from libra_core.types.reports import EnginePublication

CANARY, SCORES = (5, 6, 7), (0.0, -1.0, -2.0)
ENGINE = EngineId("engine-0")
TOOK = (EnginePublication(engine_id=ENGINE, pause_s=0.01, load_s=0.02, resume_s=0.01),)
FAULTS = {
    "wrong weights": Published(engines=TOOK, scores={ENGINE: (0.0, -1.0, -2.5)}, seconds=0.3),
    "no engine": Published(engines=(), scores={}, seconds=0.3),
    "no score": Published(engines=TOOK, scores={}, seconds=0.3),
    "no answer": DeadlineError("the flow waited 5 s for the engines to load and got no answer"),
}


@dataclass(eq=False)
class Call:
    """A reference to what the fleet will answer."""

    value: Any
    answered: bool = False


@dataclass
class Host:
    """Trainer and coordinator; `log` tells what was done and asked for, in order."""

    folder: Path
    log: list[str] = field(default_factory=list[str])
    calls: list[Call] = field(default_factory=list[Call])
    answers: dict[int, Any] = field(default_factory=dict[int, Any])
    """By version; a good one unless named."""

    def publisher(self, **publication: Any) -> WeightPublisher:
        config = LibraConfig.model_validate({"publication": publication})
        return WeightPublisher(config, self, self, self.folder)  # type: ignore[arg-type]

    @property
    def ranks(self) -> "Host":
        return self

    def call(self, method: str, path: str, deadline_s: float) -> list[Any]:
        self.log.append(f"{method} {Path(path).stem}")
        self.folder.mkdir(exist_ok=True)
        Path(path).touch()
        return [SimpleNamespace(bytes=7, duration_s=0.1)]

    def score_tokens(self, tokens: tuple[int, ...]) -> tuple[float, ...]:
        self.log.append("trainer scores")
        return SCORES

    @property
    def publish(self) -> Any:
        return SimpleNamespace(remote=self._send)

    @property
    def begin_publication(self) -> Any:
        return SimpleNamespace(remote=lambda token, wait_s: Call(True))

    @property
    def canary_tokens(self) -> Any:
        return SimpleNamespace(remote=lambda: Call(CANARY))

    def _send(self, order: PublicationOrder, canary: tuple[int, ...], token: int) -> Call:
        self.log.append(f"sent v{order.version}")
        good = Published(engines=TOOK, scores={ENGINE: SCORES} if canary else {}, seconds=0.3)
        self.calls.append(Call(self.answers.get(order.version, good)))
        return self.calls[-1]

    def ask(self, what: str, reference: Call, deadline_s: float = 60.0, *, since_s: float | None = None) -> Any:
        if what != "an engine to publish to":
            self.log.append(f"waited for {what}")
        if isinstance(reference.value, Exception):
            raise reference.value
        return reference.value


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Host]:
    built = Host(tmp_path / "weights")
    with pytest.MonkeyPatch.context() as patch:
        _stand_in(built, patch)
        yield built


def _stand_in(host: Host, patch: pytest.MonkeyPatch) -> None:
    patch.setattr(publisher, "ask", host.ask)
    patch.setattr(publisher, "answered", lambda call: call.answered)


def test_the_trainer_goes_on_before_the_engines_have_answered(host: Host) -> None:
    built = host.publisher()
    built.begin(PolicyVersion(1))
    assert host.log == ["waited for the canary prompt", "export_file v000001", "sent v1", "trainer scores"]
    assert built.under_way


def test_the_next_publication_waits_for_the_one_before(host: Host) -> None:
    built = host.publisher(canary=False)
    built.begin(PolicyVersion(1))
    built.begin(PolicyVersion(2))
    assert host.log == [
        "export_file v000001",
        "sent v1",
        "waited for the engines to load version 1",
        "export_file v000002",
        "sent v2",
    ]


def test_a_publication_that_is_waited_for_reports_itself(host: Host) -> None:
    report = host.publisher().publish(PolicyVersion(3))
    assert (report.policy_version, report.bytes, report.engines) == (3, 7, TOOK)
    assert report.canary_max_error == 0.0
    assert 0.3 <= report.total_s < 1.0, "the fleet's seconds and the trainer's"
    assert math.isnan(host.publisher(canary=False).publish(PolicyVersion(4)).canary_max_error)


def test_wrong_weights_surface_before_anything_else_is_published(host: Host) -> None:
    host.answers[1] = FAULTS["wrong weights"]
    built = host.publisher()
    built.begin(PolicyVersion(1))
    with pytest.raises(NumericsError, match=r"after publishing version 1, engine-0 and the trainer differ by 5.00e-01"):
        built.begin(PolicyVersion(2))
    assert "export_file v000002" not in host.log


def test_a_look_finds_a_failure_as_soon_as_it_is_known_and_waits_for_nothing(host: Host) -> None:
    host.answers[1] = FAULTS["no engine"]
    built = host.publisher()
    built.begin(PolicyVersion(1))
    built.check()
    host.calls[0].answered = True
    with pytest.raises(ResourceError, match="no engine took policy version 1"):
        built.check()
    assert not built.under_way


def test_a_file_stays_until_the_engines_have_loaded_the_next(host: Host) -> None:
    built = host.publisher()
    built.publish(PolicyVersion(1))
    built.begin(PolicyVersion(2))
    assert {path.stem for path in host.folder.iterdir()} == {"v000001", "v000002"}
    built.finish()
    assert {path.stem for path in host.folder.iterdir()} == {"v000002"}


def test_engines_that_never_answer_are_named_with_the_whole_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    waited: list[float] = []

    def never(_reference: object, timeout: float) -> None:
        waited.append(timeout)
        raise GetTimeoutError

    monkeypatch.setattr(ray, "get", never)
    with pytest.raises(DeadlineError, match="the flow waited 150 s for the engines to load version 3 and got no answer"):
        ask("the engines to load version 3", None, 150.0, since_s=time.monotonic() - 140.0)
    assert waited[0] == pytest.approx(10.0, abs=0.5)
    with pytest.raises(DeadlineError):
        ask("the engines to load version 3", None, 150.0, since_s=time.monotonic() - 900.0)
    assert waited[1] == 1.0, "an answer that is there can still be fetched"


@settings(deadline=None)
@given(st.lists(st.tuples(st.sampled_from(["good", *FAULTS]), st.booleans()), min_size=1, max_size=8))
def test_each_failure_surfaces_once_and_before_the_next_version_leaves_the_trainer(
    tmp_path_factory: pytest.TempPathFactory, kinds: list[tuple[str, bool]]
) -> None:
    host = Host(tmp_path_factory.mktemp("weights"))
    host.answers = {number: FAULTS[kind] for number, (kind, _) in enumerate(kinds, start=1) if kind in FAULTS}
    built, surfaced = host.publisher(), list[int]()
    with pytest.MonkeyPatch.context() as patch:
        _stand_in(host, patch)
        built.publish(PolicyVersion(0))
        for number, (_, looked_at) in enumerate(kinds, start=1):
            try:
                built.begin(PolicyVersion(number))
            except LibraError:
                surfaced.append(number - 1)
                built.begin(PolicyVersion(number))
            host.calls[-1].answered = looked_at
            try:
                built.check()
            except LibraError:
                surfaced.append(number)
        try:
            built.finish()
        except LibraError:
            surfaced.append(len(kinds))
    assert surfaced == sorted(host.answers)
    loads = [entry for entry in host.log if entry.startswith(("export", "waited for the engines"))]
    assert loads == [
        entry
        for number in range(len(kinds) + 1)
        for entry in (f"export_file v{number:06d}", f"waited for the engines to load version {number}")
    ]


def client(host: Host, **sections: Any) -> RolloutClient:
    config = LibraConfig.model_validate(sections)
    parts: dict[str, Any] = dict.fromkeys(("coordinator", "store", "scorer", "trainer"))
    return RolloutClient(config, **parts, publisher=WeightPublisher(config, host, host, host.folder))  # type: ignore[arg-type]


def test_with_overlap_an_iteration_reports_the_publication_that_ended_in_it(host: Host) -> None:
    rollout = client(host)
    assert rollout.publish(PolicyVersion(0)).policy_version == 0
    assert [rollout.begin_publication(PolicyVersion(version)).policy_version for version in (1, 2, 3)] == [0, 1, 2]
    rollout.finish_publication()
    assert host.log[-1] == "waited for the engines to load version 3"


@pytest.mark.parametrize("sections", [{"publication": {"overlap": False}}, {"rollout": {"mode": "colocated"}}])
def test_without_overlap_and_in_turns_every_publication_is_waited_for(host: Host, sections: dict[str, Any]) -> None:
    rollout = client(host, **sections)
    assert rollout.begin_publication(PolicyVersion(1)).policy_version == 1
    assert host.log[-1] == "waited for the engines to load version 1"
