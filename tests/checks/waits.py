"""Waits without a bound and work whose failure nobody would see: what a reader of a diff overlooks.

A wait counts as bounded with a timeout of its own, or inside `async with asyncio.timeout(…)`. A line that waits for ever on
purpose says why: `# unbounded: …`. Work that goes on beside its owner says who hears of its failure: `# failure: …`.
What this cannot see: a reference that travels through an attribute or a call before it is awaited.
"""

import ast
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
ROOMS = (
    "libra_core/runtime",
    "libra_core/elastic",
    "libra_core/engines",
    "libra_core/tracking",
    "libra_core/workloads",
    "flows",
    "tasks",
)
UNBOUNDED, FAILURE = "# unbounded: ", "# failure: "
_WAITS = frozenset({"join", "wait", "get", "acquire", "result", "communicate", "recv", "accept"})
"""Methods that wait for ever when they are called without an argument."""
_NEEDS_TIMEOUT = frozenset({("ray", "get"), ("ray", "wait"), ("subprocess", "run"), ("subprocess", "check_output")})
_STARTS = frozenset({"create_task", "ensure_future", "run_in_executor", "Thread"})
_TOGETHER = frozenset({"gather", "wait"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One wait or one start."""

    path: str
    line: int
    message: str


def findings(root: Path) -> list[Finding]:
    files = (path for room in ROOMS for path in sorted((root / room).rglob("*.py")))
    return [finding for path in files for finding in check_file(str(path.relative_to(root)), path.read_text(encoding="utf-8"))]


def check_file(path: str, text: str) -> Iterator[Finding]:
    """Findings of one file without a word of why."""
    lines = text.splitlines()
    tree = ast.parse(text)
    parents = {child: node for node in ast.walk(tree) for child in ast.iter_child_nodes(node)}
    for node in ast.walk(tree):
        said, message = _judged(node, parents)
        if message and not any(said in line for line in lines[node.lineno - 1 : node.end_lineno]):
            yield Finding(path=path, line=node.lineno, message=message)


def _judged(node: ast.AST, parents: dict[ast.AST, ast.AST]) -> tuple[str, str]:
    """What its line would have to say, and what is wrong with it; nothing where nothing is."""
    if isinstance(node, ast.Await) and _is_remote(node.value, node, parents) and not _is_timed(node, parents):
        return UNBOUNDED, "an actor call is awaited without a deadline; use `reply` of runtime/asking.py"
    if not isinstance(node, ast.Call):
        return UNBOUNDED, ""
    name = _name(node.func)
    if name in _STARTS:
        return FAILURE, f"{name}: who hears of its failure? use BackgroundTasks of runtime/background.py, or say it"
    if _waits_for_ever(node, name, parents) and not _is_timed(node, parents):
        return UNBOUNDED, f"{ast.unparse(node.func)} may wait for ever; give it a timeout"
    return UNBOUNDED, ""


def _waits_for_ever(call: ast.Call, name: str, parents: dict[ast.AST, ast.AST]) -> bool:
    if any(keyword.arg == "timeout" for keyword in call.keywords) or not isinstance(call.func, ast.Attribute):
        return False
    owner = call.func.value.id if isinstance(call.func.value, ast.Name) else ""
    if (owner, name) in _NEEDS_TIMEOUT:
        return True
    if owner == "asyncio" and name in _TOGETHER:
        return any(_is_remote(argument, call, parents) for argument in call.args)
    if name == "get" and "queue" not in ast.unparse(call.func.value).lower():
        return False
    return name in _WAITS and not call.args and not call.keywords


def _is_remote(value: ast.AST, place: ast.AST, parents: dict[ast.AST, ast.AST]) -> bool:
    """Whether it holds a call of an actor that nothing bounds: `actor.method.remote(…)`, or a name that was given one here."""
    if isinstance(value, ast.Starred | ast.GeneratorExp | ast.ListComp):
        return _is_remote(value.value if isinstance(value, ast.Starred) else value.elt, place, parents)
    if isinstance(value, ast.Name):
        return any(
            _is_remote(given, given, parents) for given in _given(value.id, place, parents) if not isinstance(given, ast.Name)
        )
    return isinstance(value, ast.Call) and isinstance(value.func, ast.Attribute) and value.func.attr == "remote"


def _given(name: str, place: ast.AST, parents: dict[ast.AST, ast.AST]) -> Iterator[ast.expr]:
    """What the name is set to in the function around the place."""
    scope = place
    while scope in parents and not isinstance(scope, ast.FunctionDef | ast.AsyncFunctionDef):
        scope = parents[scope]
    for node in ast.walk(scope):
        if isinstance(node, ast.Assign) and any(isinstance(target, ast.Name) and target.id == name for target in node.targets):
            yield node.value


def _is_timed(node: ast.AST, parents: dict[ast.AST, ast.AST]) -> bool:
    """Inside `async with asyncio.timeout(…)` or an argument of `asyncio.wait_for`."""
    while (node := parents.get(node, node)) in parents:
        if isinstance(node, ast.AsyncWith) and any(_name(item.context_expr).startswith("timeout") for item in node.items):
            return True
        if isinstance(node, ast.Call) and _name(node.func) == "wait_for":
            return True
    return False


def _name(node: ast.AST) -> str:
    """The last part of what is called, of a call or of its function."""
    node = node.func if isinstance(node, ast.Call) else node
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


if __name__ == "__main__":
    found = findings(ROOT)
    for finding in found:
        sys.stdout.write(f"{finding.path}:{finding.line}: {finding.message}\n")
    sys.exit(1 if found else 0)
