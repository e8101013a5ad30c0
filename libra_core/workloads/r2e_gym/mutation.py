"""Small faults put into a function's source: one operator, constant or condition at a time, everything else left as written."""

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

_COMPARE: Final[dict[type[ast.cmpop], tuple[str, str]]] = {
    ast.Lt: ("<", "<="),
    ast.LtE: ("<=", "<"),
    ast.Gt: (">", ">="),
    ast.GtE: (">=", ">"),
    ast.Eq: ("==", "!="),
    ast.NotEq: ("!=", "=="),
    ast.Is: ("is", "is not"),
    ast.IsNot: ("is not", "is"),
    ast.In: ("in", "not in"),
    ast.NotIn: ("not in", "in"),
}
_BINARY: Final[dict[type[ast.operator], tuple[str, str]]] = {
    ast.Add: ("+", "-"),
    ast.Sub: ("-", "+"),
    ast.Mult: ("*", "+"),
    ast.FloorDiv: ("//", "*"),
    ast.Div: ("/", "*"),
    ast.Mod: ("%", "//"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class FunctionSource:
    """A function with a docstring, in a module's source."""

    qualname: str
    docstring: str
    node: ast.FunctionDef


@dataclass(frozen=True, slots=True, kw_only=True)
class Mutant:
    """One changed line."""

    line: int
    kind: str
    before: str
    after: str


def functions_with_examples(source: str) -> Iterator[FunctionSource]:
    """Public functions and methods whose docstring holds examples, in the order of the file."""
    module = ast.parse(source)
    yield from _functions(module, "")


def _functions(owner: ast.Module | ast.ClassDef, prefix: str) -> Iterator[FunctionSource]:
    for node in owner.body:
        if isinstance(node, ast.FunctionDef) and not node.name.startswith("_"):
            docstring = ast.get_docstring(node) or ""
            if ">>>" in docstring:
                yield FunctionSource(qualname=prefix + node.name, docstring=docstring, node=node)
        elif isinstance(node, ast.ClassDef) and not prefix:
            yield from _functions(node, f"{node.name}.")


def mutants(source: str, function: FunctionSource) -> Iterator[Mutant]:
    """Every fault that fits on one line of the function's body, in the order of the file; docstring and signature stay."""
    lines = source.split("\n")
    first, last = function.node.lineno, function.node.end_lineno or function.node.lineno
    body = function.node.body[1:]
    nodes = sorted(
        (node for statement in body for node in ast.walk(statement) if hasattr(node, "lineno")),
        key=lambda node: (getattr(node, "lineno", 0), getattr(node, "col_offset", 0)),
    )
    for node in nodes:
        for kind, line, start, end, text in _changes(node, lines):
            before = lines[line - 1]
            encoded = before.encode()
            after = (encoded[:start] + text.encode() + encoded[end:]).decode()
            changed = [*lines[first - 1 : line - 1], after, *lines[line:last]]
            if after != before and _parses("\n".join(changed)):
                yield Mutant(line=line, kind=kind, before=before, after=after)


_Change = tuple[str, int, int, int, str]
"""Kind, line, first and last byte of the line that are replaced, and by what."""


def _changes(node: ast.AST, lines: list[str]) -> Iterator[_Change]:
    match node:
        case ast.Compare(left=left, ops=[operator], comparators=[right]) if type(operator) in _COMPARE:
            yield from _between("comparison", left, right, _COMPARE[type(operator)], lines)
        case ast.BinOp(left=left, op=operator, right=right) if type(operator) in _BINARY:
            yield from _between("operator", left, right, _BINARY[type(operator)], lines)
        case ast.BoolOp(op=operator, values=[left, right, *_]):
            swap = ("and", "or") if isinstance(operator, ast.And) else ("or", "and")
            yield from _between("condition", left, right, swap, lines)
        case ast.Constant(value=bool(value)):
            yield from _whole("constant", node, str(not value))
        case ast.Constant(value=int(value)):
            yield from _whole("constant", node, str(value + 1))
        case ast.UnaryOp(op=ast.Not(), operand=operand) if operand.lineno == node.lineno:
            yield ("negation", node.lineno, node.col_offset, operand.col_offset, "")
        case ast.If(test=test) | ast.IfExp(test=test) | ast.While(test=test) if test.lineno == test.end_lineno:
            text = lines[test.lineno - 1].encode()[test.col_offset : test.end_col_offset].decode()
            yield ("negation", test.lineno, test.col_offset, test.end_col_offset or 0, f"not ({text})")
        case _:
            return


def _between(kind: str, left: ast.expr, right: ast.expr, swap: tuple[str, str], lines: list[str]) -> Iterator[_Change]:
    if left.end_lineno != right.lineno or left.end_col_offset is None or left.end_lineno is None:
        return
    gap = lines[right.lineno - 1].encode()[left.end_col_offset : right.col_offset].decode()
    match = re.search(rf"(?<![\w=<>!*/]){re.escape(swap[0])}(?![\w=<>!*/])", gap)
    if match is not None:
        start = left.end_col_offset + match.start()
        yield (kind, right.lineno, start, start + len(swap[0]), swap[1])


def _whole(kind: str, node: ast.Constant, text: str) -> Iterator[_Change]:
    if node.lineno == node.end_lineno and node.end_col_offset is not None:
        yield (kind, node.lineno, node.col_offset, node.end_col_offset, text)


def _parses(function: str) -> bool:
    """A method's source is indented, as if it stood in a class."""
    try:
        ast.parse(f"class _:\n{function}" if function[:1].isspace() else function)
    except SyntaxError:
        return False
    return True
