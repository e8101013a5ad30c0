"""Prefect artifacts are pictures of a run: published beside it, in order; a server that is away costs only the picture.

One thread publishes; the flow's process owns it. `flush` at the end of a run waits for the rest, up to a deadline.
"""

import logging
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextvars import copy_context
from typing import Any

logger = logging.getLogger(__name__)

_worker = ThreadPoolExecutor(1, thread_name_prefix="prefect-artifacts")
_pending: set[Future[None]] = set()


def publish(what: str, call: Callable[[], Any]) -> None:
    """Run `call` in the caller's Prefect context, later; its failure is a warning."""
    work = _worker.submit(copy_context().run, _quietly, what, call)
    _pending.add(work)
    work.add_done_callback(_pending.discard)


def flush(deadline_s: float = 10.0) -> None:
    """Wait until everything is published or the deadline has passed."""
    late = wait(list(_pending), timeout=deadline_s).not_done
    if late:
        logger.warning("Prefect did not take %d artifacts within %.0f s", len(late), deadline_s)


def _quietly(what: str, call: Callable[[], Any]) -> None:
    try:
        call()
    except Exception as error:  # a picture must not end a run
        logger.warning("Prefect did not take %s: %s", what, error)
