"""Size limits, echo docstrings and `os.environ`: what the linters do not check. Limits live in pyproject.toml.

Files, functions, echoes and readers of the environment are errors. The sizes of classes, ports, parameter lists, flows and tasks
ask a question and do not decide: they are printed as warnings until a line of `exceptions` answers it.
"""

import ast
import re
import sys
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
SOURCES = ("libra_core", "flows", "tasks", "tests")
PRODUCT = ("libra_core", "flows", "tasks")


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One breach; `key` is what an exception line in pyproject.toml names."""

    key: str
    line: int
    message: str
    is_error: bool = True


def findings(root: Path, limits: dict[str, Any]) -> list[Finding]:
    """Every breach without an exception, plus every exception that is no longer needed."""
    exceptions = dict(limits.get("exceptions", {}))
    found = [finding for path in _files(root) for finding in check_file(path.relative_to(root), path.read_text(), limits)]
    unused = exceptions.keys() - {finding.key for finding in found}
    stale = [Finding(key=key, line=0, message="exception in pyproject.toml is not needed") for key in sorted(unused)]
    return [finding for finding in found if finding.key not in exceptions] + stale


def check_file(path: Path, text: str, limits: dict[str, Any]) -> Iterator[Finding]:
    """Breaches of one file, whose path is relative to the repository."""
    lines = len(text.splitlines())
    if lines > limits["file_lines"]:
        yield Finding(key=str(path), line=1, message=f"{lines} lines, at most {limits['file_lines']}")
    if path.parts[0] in PRODUCT and str(path) not in limits["environment_readers"]:
        for number, line in enumerate(text.splitlines(), 1):
            if re.search(r"\bos\.(environ|getenv)\b", line):
                yield Finding(
                    key=str(path), line=number, message="reads the environment; only config/loading.py and runtime/session.py may"
                )
    yield from _check_nodes(path, ast.parse(text), limits)


def _check_nodes(path: Path, tree: ast.AST, limits: dict[str, Any]) -> Iterator[Finding]:
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef):
            yield from _check_class(path, node, limits)
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield from _check_function(path, node, limits)


def _check_class(path: Path, node: ast.ClassDef, limits: dict[str, Any]) -> Iterator[Finding]:
    key = f"{path}::{node.name}"
    if (length := _length(node)) > limits["class_lines"]:
        yield _warning(key, node, f"class of {length} lines, at most {limits['class_lines']}")
    methods = [item for item in node.body if isinstance(item, ast.FunctionDef | ast.AsyncFunctionDef)]
    is_port = any(isinstance(base, ast.Name) and base.id == "Protocol" for base in node.bases)
    if is_port and len(methods) > limits["port_methods"]:
        yield _warning(key, node, f"port of {len(methods)} methods, at most {limits['port_methods']}")


def _check_function(path: Path, node: ast.FunctionDef | ast.AsyncFunctionDef, limits: dict[str, Any]) -> Iterator[Finding]:
    key = f"{path}::{node.name}"
    kind = _kind(node)
    length = _length(node)
    if length > limits["function_lines"]:
        yield Finding(key=key, line=node.lineno, message=f"function of {length} lines, at most {limits['function_lines']}")
    elif length > limits[f"{kind}_lines"]:
        yield _warning(key, node, f"{kind} of {length} lines, at most {limits[f'{kind}_lines']}")
    names = [arg.arg for arg in (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs)]
    count = len([name for name in names if name not in {"self", "cls"}])
    if count > limits["parameters"] and not _is_command(node):
        yield _warning(key, node, f"{count} parameters, at most {limits['parameters']}")
    if path.parts[0] in PRODUCT and _is_echo(node.name, ast.get_docstring(node)):
        yield Finding(key=key, line=node.lineno, message="docstring only repeats the name")


def _warning(key: str, node: ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef, message: str) -> Finding:
    return Finding(key=key, line=node.lineno, message=message, is_error=False)


def _kind(node: ast.FunctionDef | ast.AsyncFunctionDef) -> str:
    names = {name for decorator in node.decorator_list for name in _decorator_names(decorator)}
    if "flow" in names:
        return "flow"
    return "task" if names & {"task", "core_task"} else "function"


def _is_command(node: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    """A command-line function has one parameter per option."""
    return any("command" in _decorator_names(decorator) for decorator in node.decorator_list)


def _decorator_names(decorator: ast.expr) -> set[str]:
    target = decorator.func if isinstance(decorator, ast.Call) else decorator
    return {
        part.id if isinstance(part, ast.Name) else part.attr
        for part in ast.walk(target)
        if isinstance(part, ast.Name | ast.Attribute)
    }


def _length(node: ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    return (node.end_lineno or node.lineno) - node.lineno + 1


def _is_echo(name: str, docstring: str | None) -> bool:
    if docstring is None:
        return False
    said = set(re.findall(r"[a-z]+", docstring.lower())) - {"a", "an", "the", "of", "to"}
    return said <= {word.removesuffix("s") for word in name.lower().split("_")} | set(name.lower().split("_"))


def _files(root: Path) -> Iterator[Path]:
    for source in SOURCES:
        yield from sorted((root / source).rglob("*.py"))


def main() -> int:
    limits = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["libra"]["limits"]
    found = findings(ROOT, limits)
    for finding in found:
        print(f"{finding.key}:{finding.line}: {'' if finding.is_error else 'warning: '}{finding.message}")
    errors = sum(finding.is_error for finding in found)
    print(f"limits: {errors} broken, {len(found) - errors} warnings" if found else "limits: all kept")
    return 1 if errors else 0


if __name__ == "__main__":
    sys.exit(main())
