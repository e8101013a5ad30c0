"""Runs examples of docstrings against the code in the working folder and compares what they print.

The code under test runs in a child process: whatever it does to its interpreter, the comparison happens here. One JSON object
on standard input, `{"tests": [{"name", "module", "docstring", "names"}]}`; exit code 0 when every example gives what it should.
"""

import doctest
import json
import subprocess
import sys
from typing import Any

_FLAGS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
_CHILD = r"""
import contextlib, importlib, io, json, os, sys, traceback
sys.path.insert(0, os.getcwd())
answer = os.fdopen(os.dup(1), "w")
os.dup2(2, 1)
request = json.load(sys.stdin)
outputs = []
names = {"__name__": "__main__"}
module = importlib.import_module(request["module"])
names.update(vars(module))
names["__name__"] = "__main__"
for alias, target in request["names"].items():
    names[alias] = importlib.import_module(target)
for source in request["sources"]:
    shown = io.StringIO()
    sys.displayhook = lambda value: None if value is None else print(repr(value))
    try:
        with contextlib.redirect_stdout(shown):
            exec(compile(source, "<example>", "single"), names)
        outputs.append([shown.getvalue(), ""])
    except Exception as error:
        outputs.append([shown.getvalue(), traceback.format_exception_only(type(error), error)[-1]])
json.dump(outputs, answer)
answer.flush()
os._exit(0)
"""


def examples_of(test: dict[str, Any]) -> list[doctest.Example]:
    examples = doctest.DocTestParser().get_examples(test["docstring"])
    return [example for example in examples if not example.options.get(doctest.SKIP)]


def run_examples(test: dict[str, Any], wall_s: float) -> list[list[str]] | None:
    """Output and last line of the exception of each example; None when the code ended otherwise."""
    request = {"module": test["module"], "names": test["names"], "sources": [e.source for e in examples_of(test)]}
    try:
        done = subprocess.run(
            [sys.executable, "-I", "-S", "-B", "-c", _CHILD],
            input=json.dumps(request),
            capture_output=True,
            text=True,
            timeout=wall_s,
            check=False,
        )
        outputs: list[list[str]] = json.loads(done.stdout)
    except (subprocess.TimeoutExpired, ValueError, UnicodeDecodeError):
        return None
    return outputs


def first_failure(test: dict[str, Any], wall_s: float) -> tuple[doctest.Example | None, str] | None:
    """The first example that differs with what it gave; None when all agree."""
    outputs = run_examples(test, wall_s)
    examples = examples_of(test)
    if outputs is None or len(outputs) != len(examples):
        return None if outputs is not None and not examples else (examples[0] if examples else None, "no answer")
    checker = doctest.OutputChecker()
    for example, (printed, raised) in zip(examples, outputs, strict=True):
        flags = _FLAGS
        for option, chosen in example.options.items():
            flags = flags | option if chosen else flags & ~option
        if raised and example.exc_msg is not None:
            agrees = checker.check_output(example.exc_msg, raised, flags)
        else:
            agrees = not raised and example.exc_msg is None and checker.check_output(example.want, printed, flags)
        if not agrees:
            return example, raised or printed
    return None


def main() -> None:
    request = json.load(sys.stdin)
    failed = [test["name"] for test in request["tests"] if first_failure(test, request["wall_s"]) is not None]
    sys.stdout.write(json.dumps({"failed": failed}) + "\n")
    raise SystemExit(1 if failed else 0)


if __name__ == "__main__":
    main()
