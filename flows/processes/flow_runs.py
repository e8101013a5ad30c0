"""Final states of a training's flow runs, set by whoever ends it in the flow's place."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from uuid import UUID

import httpx
from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.client.schemas.filters import (
    FlowRunFilter,
    FlowRunFilterParentFlowRunId,
    FlowRunFilterState,
    FlowRunFilterStateType,
)
from prefect.client.schemas.objects import FlowRun, State, StateType
from prefect.exceptions import PrefectException, TerminationSignal
from prefect.settings import PREFECT_CLIENT_MAX_RETRIES, temporary_settings
from prefect.states import Cancelled

from flows.guard import closed_undisturbed
from flows.processes.watching import tell_watcher

logger = logging.getLogger(__name__)


_ENDED_WELL = [StateType.COMPLETED, StateType.FAILED, StateType.CANCELLED]
_opened: list[UUID] = []


def remember_open(flow_run_id: str) -> None:
    """The flow run that this process would have to end if it is interrupted."""
    _opened[:] = [UUID(flow_run_id)] if flow_run_id else []


@contextmanager
def cancelled_when_interrupted() -> Iterator[None]:
    """Show a flow run that somebody ended as `Cancelled`; Prefect itself would call it crashed.

    Raises:
        KeyboardInterrupt: also in place of Prefect's `TerminationSignal`.
    """
    try:
        yield
    except (KeyboardInterrupt, TerminationSignal):
        try:
            with closed_undisturbed() as close_undisturbed:
                close_undisturbed()
                for flow_run_id in _opened:
                    end_flow_runs(flow_run_id, Cancelled(message="The run was interrupted."))
        except (httpx.HTTPError, PrefectException) as error:
            logger.warning("Prefect was not told of the interrupt: %r", error)
        raise KeyboardInterrupt from None
    finally:
        tell_watcher(run=None, flow_run=None)


def end_flow_runs(flow_run_id: UUID, state: State) -> None:
    """Set the state of a flow run and of its subflows that did not complete, fail or get cancelled. Tries once."""
    with temporary_settings({PREFECT_CLIENT_MAX_RETRIES: 0}), get_client(sync_client=True) as client:
        run = client.read_flow_run(flow_run_id)
        ends = Cancelled() if run.state is not None and run.state.is_cancelling() else state
        for unfinished in (*_unfinished_below(client, flow_run_id), run):
            if unfinished.state is None or unfinished.state.type not in _ENDED_WELL:
                client.set_flow_run_state(unfinished.id, ends, force=True)


def _unfinished_below(client: SyncPrefectClient, flow_run_id: UUID) -> list[FlowRun]:
    below = FlowRunFilter(
        parent_flow_run_id=FlowRunFilterParentFlowRunId(any_=[flow_run_id]),
        state=FlowRunFilterState(type=FlowRunFilterStateType(not_any_=_ENDED_WELL)),
    )
    return client.read_flow_runs(flow_run_filter=below, limit=50)
