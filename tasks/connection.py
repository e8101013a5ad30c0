"""How flows and tasks reach the session's actors: through `libra_core.assembly`, or through a stand-in in tests."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

from libra_core.config import LibraConfig
from libra_core.planning.decision import PlanComparison
from libra_core.ports.pools import ClusterController, PolicyTrainer, RewardScorer, RolloutPool
from libra_core.types.decision import Decision, ResolvedDecision
from libra_core.types.profile import RunProfile
from libra_core.types.reports import IterationReport
from libra_core.types.session import SessionRef


class PlanManager(Protocol):
    """Looks at the plan of a running session."""

    def is_due(self, step: int, *, asked: bool = False) -> bool: ...

    def profile(self, step: int) -> RunProfile: ...

    def propose(self, profile: RunProfile) -> list[PlanComparison]: ...

    def decide(self, comparisons: list[PlanComparison]) -> Decision: ...

    def apply(self, decision: Decision) -> None: ...

    def resolve(self, report: IterationReport | None) -> list[ResolvedDecision]: ...


class Connection(Protocol):
    """Typed clients of one session."""

    rollout: RolloutPool
    reward: RewardScorer
    trainer: PolicyTrainer
    controller: ClusterController
    planner: PlanManager | None
    """None where nothing can move."""


class Backend(Protocol):
    """What opens, finds and closes sessions."""

    def open_session(self, config: LibraConfig, run_dir: Path, report: Callable[[str, float], None]) -> SessionRef: ...

    def connect(self, session: SessionRef) -> Connection: ...

    def close_session(self, session: SessionRef) -> None: ...


_stand_ins: list[Backend] = []


def backend() -> Backend:
    """`libra_core.assembly`, unless a test put something in its place."""
    if _stand_ins:
        return _stand_ins[-1]
    from libra_core import assembly  # loads Ray, vLLM and Megatron; only when a session is wanted

    return assembly


def connect(session: SessionRef) -> Connection:
    """Clients of the session's actors, cached per process."""
    return backend().connect(session)


@contextmanager
def using(stand_in: Backend) -> Iterator[None]:
    """Within the block sessions come from this backend."""
    _stand_ins.append(stand_in)
    try:
        yield
    finally:
        _stand_ins.pop()
