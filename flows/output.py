"""One JSON line on stdout, whatever libraries and child processes print."""

import json
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

Emit = Callable[[Any], None]


@contextmanager
def json_output(enabled: bool) -> Iterator[Emit]:
    """Within the block everything written to stdout, also by children, goes to stderr; `emit` alone writes to stdout."""
    if not enabled:
        yield lambda value: None
        return
    sys.stdout.flush()
    real_stdout = os.dup(1)
    os.dup2(2, 1)
    try:
        yield lambda value: _write_line(real_stdout, value)
    finally:
        sys.stdout.flush()
        os.dup2(real_stdout, 1)
        os.close(real_stdout)


def _write_line(descriptor: int, value: Any) -> None:
    with os.fdopen(os.dup(descriptor), "w", encoding="utf-8") as stdout:
        stdout.write(json.dumps(value) + "\n")
