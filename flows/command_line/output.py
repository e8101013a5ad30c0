"""What goes to stdout: one JSON line, whatever libraries and child processes print, and text that any stream can take."""

import codecs
import json
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from io import TextIOWrapper
from typing import Any, Final

Emit = Callable[[Any], None]

_PLAIN: Final = {
    **{"η": "eta", "×": "x", "±": "+-", "→": "->", "≤": "<=", "≥": ">=", "∞": "inf", "µ": "u", "·": ".", "•": "*"},
    **{"…": "...", "–": "-", "—": "-", "“": '"', "”": '"', "‘": "'", "’": "'"},
    **dict.fromkeys("─━╸╺╴╶", "-"),
    **dict.fromkeys("│┃", "|"),
}
"""How signs are written where the stream's encoding has none of them; `?` stands for any other."""
_ERRORS: Final = "libra.plain"


def write_any_text() -> None:
    """Let stdout and stderr replace what their encoding lacks, such as η in ASCII, instead of ending the command."""
    codecs.register_error(_ERRORS, _plain)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors=_ERRORS)


def _plain(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    return "".join(_PLAIN.get(sign, "?") for sign in error.object[error.start : error.end]), error.end


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
