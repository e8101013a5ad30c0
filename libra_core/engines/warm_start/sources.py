"""A digest of the code that decides a warm-started policy's weights; comments, docstrings and layout do not change it."""

import ast
import hashlib
from functools import cache
from pathlib import Path
from typing import Any, Final

_CORE: Final = Path(__file__).parents[2]
_DECIDING: Final = (
    *(
        f"engines/warm_start/{name}.py"
        for name in (
            "demonstrations",
            "evaluation",
            "imitation",
            "invention",
            "lessons",
            "muon",
            "policy",
            "recipe",
            "sampler",
            "tokenizer",
        )
    ),
    *(f"workloads/search_r1/{name}.py" for name in ("facts", "passages", "questions", "tags")),
)


@cache
def sources_digest() -> str:
    """The same for every Python version."""
    shapes = [shape_of((_CORE / name).read_text(encoding="utf-8")) for name in _DECIDING]
    return hashlib.sha256(repr(shapes).encode()).hexdigest()[:16]


def shape_of(source: str) -> Any:
    return _shape(ast.parse(source))


def _shape(node: Any) -> Any:
    """Nested lists of names and constants. Empty fields are left out, as newer Pythons add some."""
    if isinstance(node, list):
        return [_shape(item) for item in node if not _is_docstring(item)]
    if not isinstance(node, ast.AST):
        return node
    fields = [(name, value) for name, value in ast.iter_fields(node) if value is not None and value != []]
    return [type(node).__name__, *((name, _shape(value)) for name, value in fields)]


def _is_docstring(node: Any) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
