"""Installed packages of pure Python with examples in their docstrings."""

import importlib.util
import shutil
from importlib.metadata import version
from pathlib import Path
from typing import Final

from libra_core.errors import ConfigError

PACKAGES: Final = {
    "more_itertools": "more-itertools",
    "boltons": "boltons",
    "sortedcontainers": "sortedcontainers",
    "humanize": "humanize",
    "packaging": "packaging",
    "pyparsing": "pyparsing",
    "networkx": "networkx",
}
"""Import name and distribution; none needs another package to import."""
ALIASES: Final = {"networkx": {"nx": "networkx"}}
"""Names that a package's examples take for granted."""
_LEFT_OUT: Final = ("tests", "__pycache__", "*.pyc", "*.so")


def package_versions() -> dict[str, str]:
    return {name: version(distribution) for name, distribution in PACKAGES.items()}


def copy_package(name: str, folder: Path) -> None:
    """Its sources below `folder/name`, without tests; raises `ConfigError` when it is not installed."""
    spec = importlib.util.find_spec(name)
    if spec is None or spec.origin is None:
        raise ConfigError(f"the package {PACKAGES[name]} is not installed; install Libra's dependencies again")
    shutil.copytree(Path(spec.origin).parent, folder / name, ignore=shutil.ignore_patterns(*_LEFT_OUT))


def module_name(path: Path) -> str:
    """Of a file, by its path from the working folder."""
    parts = path.with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
