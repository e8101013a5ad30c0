"""A running session whose engines are divided anew, from two of tp 1 to one of tp 2 and back: real engines, nothing lost."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from libra_core.config import LibraConfig
from libra_core.planning.transition import transition
from libra_core.runtime.driver.session import SessionClients
from libra_core.types.decision import Decision, Verdict
from libra_core.types.plan import Plan, RolloutLayout
from libra_core.types.reports import IterationReport
from libra_core.types.transition import Tier, TransitionOutcome
from tests.integration.sessions import own_processes, random_policy, reported, session, small_config

pytestmark = [pytest.mark.integration, pytest.mark.slow]

PER_STEP = 16
"""Trajectories."""
ENGINE = "ray::EngineActor"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return random_policy(tmp_path_factory.mktemp("model") / "policy")


def divided(model: Path, root: Path) -> LibraConfig:
    """An entropy term gives babble, whose rewards are all 0, a gradient: every step trains."""
    return small_config(
        model,
        root,
        rollout={"engines": [{"tp": 1, "count": 2}], "max_new_tokens": 64, "kv_transfer": "shared_folder"},
        training={"steps": 5000, "loss": {"entropy_coefficient": 0.01}},
        replanning={"repartition": True},
    )


class Run:
    """A session and the number of its next step."""

    def __init__(self, connection: SessionClients) -> None:
        self.connection, self.step = connection, 0

    def iterate(self) -> IterationReport:
        """One step, which trains."""
        report = reported(self.connection, self.step)
        assert report.rollout.trajectories == PER_STEP
        assert not report.update.skipped
        self.step += 1
        return report

    def engines(self) -> list[str]:
        """Those that took the weights of one more step."""
        return sorted(part.engine_id for part in self.iterate().publication.engines)

    def move_to(self, target: Plan, within_s: float = 400.0) -> TransitionOutcome:
        """Steps go on meanwhile, or wait while no engine serves."""
        controller, end_s = self.connection.controller, time.monotonic() + within_s
        controller.begin(transition(controller.plan(), target))
        while (outcome := controller.outcome()) is None:
            assert time.monotonic() < end_s, f"not done after {within_s:.0f} s and {self.step} steps"
            self.iterate()
        return outcome

    def follow(self, decide: Callable[[Decision], Decision], within_s: float = 400.0) -> tuple[Decision, TransitionOutcome]:
        """A look at the plan after two steps, and the steps until what it began has ended."""
        planner, end_s = self.connection.planner, time.monotonic() + within_s
        for _ in range(2):
            planner.resolve(self.iterate())
        decision = decide(planner.decide(planner.propose(planner.profile(self.step - 1))))
        planner.apply(decision)
        while not (resolved := planner.resolve(self.iterate())):
            assert time.monotonic() < end_s, f"not done after {within_s:.0f} s and {self.step} steps"
        return decision, resolved[0].outcome


@contextmanager
def the_next_engine_dies_while_it_starts() -> Iterator[list[int]]:
    """Kills the first engine process that comes up; yields its id once that has happened."""
    known, killed, over = {process.pid for process in own_processes(ENGINE)}, list[int](), threading.Event()

    def watch() -> None:
        while not over.wait(0.2):
            fresh = [process for process in own_processes(ENGINE) if process.pid not in known]
            if fresh:
                fresh[0].kill()
                killed.append(fresh[0].pid)
                return

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        yield killed
    finally:
        over.set()
        watcher.join()


@pytest.mark.timeout(900)
def test_engines_become_one_of_twice_the_degree_and_two_again_while_training_goes_on(model: Path, tmp_path: Path) -> None:
    config = divided(model, tmp_path)
    with session(config, tmp_path / "run") as connection:
        run, controller = Run(connection), connection.controller
        two = controller.plan()
        one = replace(two, rollout=RolloutLayout(engines=((2, 1),)))
        assert run.engines() == ["engine-0", "engine-1"]

        with the_next_engine_dies_while_it_starts() as killed:
            failed = run.move_to(one)
        assert len(killed) == 1
        assert (failed.applied, failed.not_undone) == (False, ())
        assert "engine-2 did not start" in failed.error
        assert controller.plan() == two
        assert len(connection.rollout.stats()) == 2
        assert len(run.engines()) == 2, "the old plan serves again"

        there = run.move_to(one)
        assert there.applied, there.error
        assert controller.plan() == one
        assert len(connection.rollout.stats()) == 1
        assert len(run.engines()) == 1

        decision, back = run.follow(lambda decision: replace(decision, verdict=Verdict.SWITCH))
        assert decision.tier is Tier.REPARTITION
        assert decision.candidate.plan == two
        assert back.applied, back.error
        assert controller.plan() == two
        names = run.engines()
        assert len(names) == 2
        assert not {"engine-0", "engine-1"} & set(names)
        print("seconds by phase", failed.phases, there.phases, back.phases)

        audit = connection.rollout.audit()
        assert (audit.lost, audit.doubled, audit.failed) == (0, 0, 0)
        assert audit.taken == audit.trained == PER_STEP * run.step
