"""Which faults do the examples of a package notice? Runs in a sandbox over a copy of the package.

One JSON object on standard input: `{"functions": [{"module", "qualname", "docstring", "names", "first", "last", "mutants":
[[line, text], …]}]}`, lines counted in the module's file. For each function one JSON line: `null` when its examples fail or take
long as they are, else the number of the first mutant that they notice, with the example and what it gave; -1 for none.
"""

import contextlib
import doctest
import importlib
import inspect
import io
import json
import os
import signal
import sys
import time
import types
from typing import Any

_FLAGS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
_TRIAL_S, _QUICK_S = 2.0, 0.2


class _Late(BaseException):
    pass


def late(number: int, frame: types.FrameType | None) -> None:
    raise _Late


class _First(doctest.DocTestRunner):
    """Remembers the first example that fails."""

    failure: tuple[str, str, str] | None = None

    def report_failure(self, out: Any, test: Any, example: doctest.Example, got: str) -> None:
        self.failure = self.failure or (example.source, example.want, got)

    def report_unexpected_exception(self, out: Any, test: Any, example: doctest.Example, exc_info: Any) -> None:
        raised = f"{exc_info[0].__name__}: {exc_info[1]}"
        self.failure = self.failure or (example.source, example.want, raised)


def failure_of(function: dict[str, Any], module: types.ModuleType) -> tuple[str, str, str] | None:
    names = {**vars(module), "__name__": "__main__"}
    names.update({alias: importlib.import_module(target) for alias, target in function["names"].items()})
    test = doctest.DocTestParser().get_doctest(function["docstring"], names, function["qualname"], None, 0)
    runner = _First(verbose=False, optionflags=_FLAGS)
    signal.setitimer(signal.ITIMER_REAL, _TRIAL_S, _TRIAL_S)  # again and again: doctest goes on with the next example
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            runner.run(test, out=lambda text: None, clear_globs=True)
    except _Late:
        return ("", "", "no answer within the deadline")
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
    return runner.failure


def plain_function(module: types.ModuleType, qualname: str) -> types.FunctionType | None:
    target: Any = module
    for name in qualname.split("."):
        target = inspect.getattr_static(target, name, None)
    target = getattr(target, "fget", target)
    target = getattr(target, "__func__", target)
    return target if isinstance(target, types.FunctionType) and not target.__closure__ else None


def code_of(function: dict[str, Any], lines: list[str], line: int, text: str) -> types.CodeType | None:
    """Of the function alone, within its class if it has one: a whole module takes long to compile."""
    first, last = function["first"], function["last"]
    source = "\n".join([*lines[first - 1 : line - 1], text, *lines[line:last]])
    *owners, name = function["qualname"].split(".")
    wrapped = f"class {owners[0]}:\n{source}" if owners else source
    code: types.CodeType = compile(wrapped, "mutant", "exec", dont_inherit=True)
    for wanted in (*owners, name):
        inner = [c for c in code.co_consts if isinstance(c, types.CodeType) and c.co_name == wanted]
        if not inner:
            return None
        code = inner[0]
    return code


def judge(function: dict[str, Any]) -> Any:
    module = importlib.import_module(function["module"])
    target = plain_function(module, function["qualname"])
    if target is None:
        return None
    started_s = time.process_time()
    if failure_of(function, module) is not None or time.process_time() - started_s > _QUICK_S:
        return None
    original = target.__code__
    with open(original.co_filename, encoding="utf-8") as file:
        lines = file.read().split("\n")
    for number, (line, text) in enumerate(function["mutants"]):
        code = code_of(function, lines, line, text)
        if code is None or code.co_freevars != original.co_freevars:
            continue
        target.__code__ = code
        try:
            failure = failure_of(function, module)
        finally:
            target.__code__ = original
        if failure is not None and failure[0]:
            return {"mutant": number, "source": failure[0], "want": failure[1], "got": failure[2][:500]}
    return {"mutant": -1}


def main() -> None:
    sys.path.insert(0, os.getcwd())
    signal.signal(signal.SIGALRM, late)
    answer = os.fdopen(os.dup(1), "w")
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    for function in json.load(sys.stdin)["functions"]:
        try:
            verdict = judge(function)
        except Exception:
            verdict = None
        answer.write(json.dumps(verdict) + "\n")
        answer.flush()


main()
