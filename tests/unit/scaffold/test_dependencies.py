"""pyproject.toml declares what the product imports, and nothing else."""

import ast
import re
import sys
import tomllib
from functools import cache
from importlib.metadata import packages_distributions
from pathlib import Path

ROOT = Path(__file__).parents[3]
OWN = {"libra_core", "flows", "tasks"}
BESIDE = {"supervise"}
"""A file beside the script that imports it, in the sandbox."""
LOADED_BY_NAME = {"boltons", "more-itertools"}
"""Packages whose functions `r2e_gym` mutates."""


@cache
def _imported() -> frozenset[str]:
    found: set[str] = set()
    for folder in OWN:
        for file in (ROOT / folder).rglob("*.py"):
            for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
                if isinstance(node, ast.Import):
                    found |= {alias.name.partition(".")[0] for alias in node.names}
                elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                    found.add(node.module.partition(".")[0])
    return frozenset(found - set(sys.stdlib_module_names) - OWN - BESIDE)


_owners = cache(packages_distributions)


def _plain(name: str) -> str:
    return re.split(r"[\[<>=!~; ]", name)[0].lower().replace("_", "-")


def _declared(*, extras: bool) -> set[str]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    names = list(project["dependencies"])
    for extra, more in project["optional-dependencies"].items():
        names += more if extras and extra != "dev" else []
    return {_plain(name) for name in names}


def test_every_imported_package_is_declared() -> None:
    owners, declared = _owners(), _declared(extras=True)
    missing = {name for name in _imported() if not {_plain(owner) for owner in owners.get(name, [name])} & declared}
    assert missing == set()


def test_every_declared_package_is_imported() -> None:
    owners = _owners()
    imported = {_plain(owner) for name in _imported() for owner in owners.get(name, [name])}
    assert _declared(extras=False) - imported - LOADED_BY_NAME == set()
