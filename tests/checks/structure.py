"""How much there is to take in: lines, classes and pure forwarders of the product, and who imports whom inside a room.

    python tests/checks/structure.py [--room libra_core/runtime] [--json] [--list]

A room's modules (or, once it has folders, its folders) are nodes; an arrow is an import between two of them; floors are the
longest chain of imports. A pure forwarder is a function that only passes its own arguments on; `--list` names them. Nothing is
judged here: it prints figures for a comparison of two commits.
"""

import argparse
import ast
import json
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
PRODUCT = ("libra_core", "flows", "tasks")

Graph = dict[str, set[str]]


def sizes(root: Path, sources: tuple[str, ...]) -> dict[str, int]:
    """Files, lines, classes and the length of the median file."""
    texts = [path.read_text() for source in sources for path in sorted((root / source).rglob("*.py"))]
    lines = sorted(len(text.splitlines()) for text in texts)
    classes = sum(isinstance(node, ast.ClassDef) for text in texts for node in ast.walk(ast.parse(text)))
    return {"files": len(texts), "lines": sum(lines), "classes": classes, "median_file": lines[len(lines) // 2] if lines else 0}


def forwarders(root: Path, sources: tuple[str, ...]) -> list[str]:
    """`file:line name` of each function whose body is one call with exactly its own arguments."""
    paths = [path for source in sources for path in sorted((root / source).rglob("*.py"))]
    return [
        f"{path.relative_to(root)}:{node.lineno} {node.name}"
        for path in paths
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and _only_passes_on(node)
    ]


def _only_passes_on(node: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    body = node.body[1:] if ast.get_docstring(node) is not None else node.body
    if len(body) != 1 or not isinstance(body[0], ast.Expr | ast.Return):
        return False
    call = body[0].value.value if isinstance(body[0].value, ast.Await) else body[0].value
    if not isinstance(call, ast.Call) or any(isinstance(part, ast.Call) for part in ast.walk(call.func)):
        return False
    spread = [argument.arg for argument in (node.args.vararg, node.args.kwarg) if argument is not None]
    own = {argument.arg for argument in (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs)} | set(spread)
    values = [item.value if isinstance(item, ast.Starred) else item for item in call.args] + [
        item.value for item in call.keywords
    ]
    given = {value.id for value in values if isinstance(value, ast.Name)}
    return len(given) == len(values) and given == own - {"self", "cls"}


def module_graph(root: Path, room: str) -> Graph:
    """{module: modules of the same room that it imports}, both as dotted names below the room."""
    folder, package = root / room, room.replace("/", ".")
    modules = {_dotted(path.relative_to(folder)): path for path in sorted(folder.rglob("*.py"))}
    return {
        name: {target for imported in _imports(path) if (target := _inside(imported, package, modules)) and target != name}
        for name, path in modules.items()
        if name
    }


def folder_graph(modules: Graph) -> Graph:
    """The same between folders; a module that lies in none stands for itself."""
    graph: Graph = {}
    for name, targets in modules.items():
        own = name.split(".")[0]
        graph.setdefault(own, set()).update({target.split(".")[0] for target in targets} - {own})
    return graph


def floors(graph: Graph) -> int:
    """Length of the longest chain of imports; modules that import each other in a circle count once."""
    depth: dict[str, int] = {}

    def visit(node: str, above: tuple[str, ...]) -> int:
        if node not in depth:
            below = [visit(target, (*above, node)) for target in sorted(graph.get(node, set())) if target not in above]
            depth[node] = 1 + max(below, default=0)
        return depth[node]

    return max((visit(node, ()) for node in sorted(graph)), default=0)


def arrows(graph: Graph) -> int:
    return sum(len(targets) for targets in graph.values())


def _dotted(path: Path) -> str:
    return ".".join(path.with_suffix("").parts).removesuffix("__init__").removesuffix(".")


def _imports(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def _inside(imported: str, package: str, modules: dict[str, Path]) -> str:
    name = imported.removeprefix(f"{package}.") if imported.startswith(f"{package}.") else ""
    return name if name in modules else ""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--room", default="libra_core/runtime", help="folder whose imports are drawn")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--list", action="store_true", help="name the pure forwarders, and nothing more")
    chosen = parser.parse_args()
    passing = forwarders(ROOT, PRODUCT)
    if chosen.list:
        print("\n".join(passing))
        return 0
    modules = module_graph(ROOT, chosen.room)
    folders = folder_graph(modules)
    figures = {
        "product": sizes(ROOT, PRODUCT) | {"forwarders": len(passing)},
        "tests": sizes(ROOT, ("tests",)),
        "room": chosen.room,
        "modules": {"nodes": len(modules), "arrows": arrows(modules), "floors": floors(modules)},
        "folders": {"nodes": len(folders), "arrows": arrows(folders), "floors": floors(folders)},
    }
    print(json.dumps(figures) if chosen.json else json.dumps(figures, indent=2))
    return 0


if __name__ == "__main__":
    sys.exit(main())
