"""Do the hidden tests of tasks pass on the package as it is, and fail with each task's fault? Runs in a sandbox over a copy.

One JSON object on standard input: `{"hidden_tests": source, "wall_s", "tasks": [{"path", "line", "after", "tests"}]}`; one JSON
line for each task: whether it is sound.
"""

import json
import sys
import types
from typing import Any


def sound(task: dict[str, Any], checker: Any, wall_s: float, passing: dict[str, bool]) -> bool:
    """`passing` remembers which tests pass on the package as it is."""
    for test in task["tests"]:
        if test["name"] not in passing:
            passing[test["name"]] = checker.first_failure(test, wall_s) is None
        if not passing[test["name"]]:
            return False
    with open(task["path"], encoding="utf-8", newline="") as file:
        original = file.read()
    lines = original.split("\n")
    lines[task["line"] - 1] = task["after"]
    try:
        with open(task["path"], "w", encoding="utf-8", newline="") as file:
            file.write("\n".join(lines))
        return checker.first_failure(task["tests"][0], wall_s) is not None
    finally:
        with open(task["path"], "w", encoding="utf-8", newline="") as file:
            file.write(original)


def main() -> None:
    request = json.load(sys.stdin)
    checker = types.ModuleType("hidden_tests")
    exec(compile(request["hidden_tests"], "hidden_tests", "exec"), vars(checker))
    passing: dict[str, bool] = {}
    for task in request["tasks"]:
        sys.stdout.write(json.dumps(sound(task, checker, request["wall_s"], passing)) + "\n")
        sys.stdout.flush()


main()
