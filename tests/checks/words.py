"""One word per concept: names without words of the private dialect, and no class name twice in the product.

    python tests/checks/words.py

`[tool.libra.words.banned]` of pyproject.toml says what to say instead, `[tool.libra.words.allowed]` which names may hold such a
word and why. Read are classes, functions, attributes, parameters, variables, modules, configuration keys and metrics; sentences
may use English. The words themselves are in docs/concepts.md.
"""

import ast
import re
import sys
import tomllib
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
ROOMS = ("libra_core", "flows", "tasks")
_PART = re.compile(r"[A-Z]+(?=[A-Z][a-z])|[A-Z]?[a-z]+|[A-Z]+")
_METRIC = re.compile(r"[a-z_]+/[a-z_0-9]+")


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One name."""

    path: str
    line: int
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Words:
    """`banned`: `{"keeper": "manager"}`, plurals and tenses each a word; `allowed`: `{"swe_bench": "a data set's name"}`."""

    banned: Mapping[str, str]
    allowed: Mapping[str, str]

    def against(self, name: str) -> str:
        """Why a name is refused; empty for one that is not."""
        word = next((part for part in parts_of(name) if part in self.banned), None)
        return "" if word is None or name in self.allowed else f'"{word}" is no word of the field: say {self.banned[word]}'


def words_of(root: Path) -> Words:
    settings = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["libra"]["words"]
    return Words(banned=settings["banned"], allowed=settings["allowed"])


def parts_of(name: str) -> list[str]:
    """`FleetKeeper`, `_fleet_keeper` and `FLEET_KEEPER` are fleet and keeper."""
    return [part.lower() for part in _PART.findall(name)]


def findings(root: Path) -> list[Finding]:
    files = {str(path.relative_to(root)): path for room in ROOMS for path in sorted((root / room).rglob("*.py"))}
    return check({name: path.read_text(encoding="utf-8") for name, path in files.items()}, words_of(root))


def check(files: Mapping[str, str], words: Words) -> list[Finding]:
    """What is wrong with the product whose files have these texts."""
    classes: dict[str, list[tuple[str, int]]] = defaultdict(list)
    wrong: list[Finding] = []
    for path, text in files.items():
        for name, line in (*_of_path(path), *_given(ast.parse(text))):
            if why := words.against(name):
                wrong.append(Finding(path=path, line=line, message=f"{name}: {why}"))
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.ClassDef):
                classes[node.name].append((path, node.lineno))
    return [*wrong, *_doubled(classes)]


def _doubled(classes: Mapping[str, Sequence[tuple[str, int]]]) -> Iterator[Finding]:
    for name, places in classes.items():
        first, _ = places[0]
        for path, line in places[1:]:
            message = f"class {name}: {first} has a class of this name; name each by what tells it from the other"
            yield Finding(path=path, line=line, message=message)


def _of_path(path: str) -> Iterator[tuple[str, int]]:
    yield Path(path).stem, 1
    yield Path(path).parent.name, 1


def _given(tree: ast.AST) -> Iterator[tuple[str, int]]:
    """Names that the file gives to something, each where it does; what libraries call their things is theirs."""
    for node in ast.walk(tree):
        match node:
            case ast.ClassDef(name=name) | ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                yield name, node.lineno
            case ast.arg(arg=name) | ast.Name(id=name, ctx=ast.Store()) | ast.Attribute(attr=name, ctx=ast.Store()):
                yield name, node.lineno
            case ast.MatchAs(name=str(name)) | ast.MatchStar(name=str(name)) | ast.ExceptHandler(name=str(name)):
                yield name, node.lineno
            case ast.alias(asname=str(name)):
                yield name, node.lineno
            case ast.Constant(value=str(name)) if _METRIC.fullmatch(name):
                yield name, node.lineno
            case _:
                pass


if __name__ == "__main__":
    found = findings(ROOT)
    for finding in found:
        sys.stdout.write(f"{finding.path}:{finding.line}: {finding.message}\n")
    sys.stdout.write(f"words: {len(found)} to replace\n")
    sys.exit(1 if found else 0)
