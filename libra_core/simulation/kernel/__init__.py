"""The compiled event simulation. Its machine code is cached beside the sources, under a name that changes with any of them:
numba itself looks only at the file of the outermost function, so an edited helper would go unnoticed."""

import hashlib
import os
import tempfile
from pathlib import Path
from typing import Any

import numba

from libra_core.types import running_mean

_SOURCES = [*sorted(Path(__file__).parent.glob("*.py")), Path(running_mean.__file__)]
"""With the constants of others, which are compiled in."""
_DIGEST = hashlib.sha256(b"".join(source.read_bytes() for source in _SOURCES)).hexdigest()[:12]


def _cache_folder() -> Path:
    beside = Path(__file__).parent
    root = beside if os.access(beside, os.W_OK) else Path(tempfile.gettempdir()) / "libra"
    return root / "__pycache__" / f"numba-{_DIGEST}"


_settings: Any = numba.config
_before = _settings.CACHE_DIR
_settings.CACHE_DIR = str(_cache_folder())
try:
    from libra_core.simulation.kernel.loop import advance_to as advance_to
    from libra_core.simulation.kernel.loop import assign as assign
    from libra_core.simulation.kernel.loop import hold_back as hold_back
    from libra_core.simulation.kernel.loop import open_engine as open_engine
    from libra_core.simulation.kernel.loop import stop_engine as stop_engine
    from libra_core.simulation.kernel.loop import survey as survey
finally:
    _settings.CACHE_DIR = _before
