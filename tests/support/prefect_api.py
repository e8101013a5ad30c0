"""Requests to a Prefect server of a test."""

import time
from typing import Any

import httpx

_PATIENCE_S = 60.0
_BUSY = 503


def served_answer(method: str, url: str, body: dict[str, Any] | None = None) -> Any:
    """A server on SQLite says 503 while another writes for long, and Prefect's own client asks again; so does this."""
    end_s = time.monotonic() + _PATIENCE_S
    while True:
        answer = httpx.request(method, url, json=body, timeout=30)
        if answer.status_code != _BUSY or time.monotonic() > end_s:
            return answer.raise_for_status().json()
        time.sleep(0.5)
