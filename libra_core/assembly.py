"""The one place that chooses a backend: from a configuration to a running session and its clients."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from libra_core.config import LibraConfig
from libra_core.errors import ResourceError
from libra_core.runtime.base.remains import remove_remains
from libra_core.types.session import SessionRef
from libra_core.workloads.build import build_workload
from libra_core.workloads.data import prepare_missing

if TYPE_CHECKING:
    from libra_core.runtime.driver.session import Session, SessionClients
    from libra_core.simulation.backend import SimulatedSession

Report = Callable[[str, float], None]

_sessions: dict[str, "Session | SimulatedSession"] = {}
"""Sessions that this process owns, by run id."""


def open_session(config: LibraConfig, run_dir: Path, report: Report) -> SessionRef:
    """Make sure of the policy, then start Ray and all actors.

    Raises:
        LibraError: one sentence; nothing that was started is left behind.
    """
    if config.backend.kind == "simulated":
        return _open_simulated(config, run_dir, report)
    from libra_core.engines.head_sizes import check_head_size
    from libra_core.engines.model_folder import check_model_folder
    from libra_core.runtime.driver.session import require_memory, resume_point, start_session

    require_memory(config)
    checkpoint = resume_point(config, report)
    prepare_missing(config, report)
    folder = prepare_policy(config, report)
    degrees = tuple(group.tp for group in config.rollout.engines)
    facts = check_model_folder(folder, layout=config.training.layout, engine_degrees=degrees)
    if config.backend.kind == "cpu":
        check_head_size(facts.head_dim)
    if config.model.path is None:  # its tokenizer was not there before
        build_workload(config, folder).prompts.census()
    session = start_session(config, folder, run_dir, report, checkpoint)
    _sessions[session.ref.run_id] = session
    return session.ref


def _open_simulated(config: LibraConfig, run_dir: Path, report: Report) -> SessionRef:
    from libra_core.simulation.backend import SimulatedSession

    report("compiling the simulation", 0.0)
    session = SimulatedSession(config, run_dir)
    _sessions[session.ref.run_id] = session
    return session.ref


def prepare_policy(config: LibraConfig, report: Report) -> Path:
    """The configured HF folder, or the tiny policy from the cache: warm-started where that is wanted, else random."""
    if config.model.path is not None:
        return Path(config.model.path)
    if config.workload.kind != "search_r1" and not config.model.warm_start.tool_steps:
        from libra_core.engines.warm_start.untaught import ensure_untaught_policy

        return ensure_untaught_policy(config)
    from libra_core.engines.warm_start.ensure import ensure_policy

    return ensure_policy(config, report).folder


def connect(session: SessionRef) -> "SessionClients | SimulatedSession":
    """Clients of a session that this process opened."""
    owned = _sessions.get(session.run_id)
    if owned is None or owned.connection is None:
        raise ResourceError(f"session {session.run_id} is not open in this process; a run's tasks run in the process of its flow")
    return owned.connection


def close_session(session: SessionRef) -> None:
    """End every actor of the session and remove what it left on this host; safe to repeat, and from another process."""
    owned = _sessions.pop(session.run_id, None)
    if owned is not None:
        owned.close()
    else:
        remove_remains(session)
