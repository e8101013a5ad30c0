"""View, search, edit and insert inside a sandbox. One JSON object on standard input; the exit code tells whether it worked."""

import json
import os
import re
import sys
from typing import Any, NoReturn

_MAX_LINES, _MAX_MATCHES, _MAX_BYTES = 400, 60, 2_000_000


def fail(sentence: str) -> NoReturn:
    sys.stdout.write(sentence + "\n")
    raise SystemExit(1)


def text_of(path: str) -> str:
    try:
        if os.path.getsize(path) > _MAX_BYTES:
            fail(f"{path} is larger than {_MAX_BYTES} bytes")
        with open(path, encoding="utf-8", newline="") as file:
            return file.read()
    except UnicodeDecodeError:
        fail(f"{path} is not text")
    except OSError as error:
        fail(f"{path}: {error.strerror}")


def lines_of(path: str) -> list[str]:
    """As grep and tracebacks count them: form feeds and the like end no line."""
    return re.findall(r"[^\n]*\n|[^\n]+", text_of(path))


def view(request: dict[str, Any]) -> None:
    path = str(request.get("path", "."))
    if os.path.isdir(path):
        for name in sorted(os.listdir(path))[:_MAX_LINES]:
            sys.stdout.write(name + ("/" if os.path.isdir(os.path.join(path, name)) else "") + "\n")
        return
    lines = lines_of(path)
    start = max(1, int(request.get("start") or 1))
    end = min(len(lines), int(request.get("end") or len(lines)), start + _MAX_LINES - 1)
    for number in range(start, end + 1):
        line = lines[number - 1].rstrip("\r\n")
        sys.stdout.write(f"{number:6d}\t{line}\n")
    if end < len(lines):
        sys.stdout.write(f"({len(lines)} lines in all)\n")


def search(request: dict[str, Any]) -> None:
    try:
        pattern = re.compile(str(request["pattern"]))
    except re.error as error:
        fail(f"the pattern is no regular expression: {error}")
    matches = 0
    for path in files_below(str(request.get("path", "."))):
        try:
            with open(path, encoding="utf-8", newline="\n") as file:
                for number, line in enumerate(file, start=1):
                    if pattern.search(line):
                        matches += 1
                        sys.stdout.write(f"{path}:{number}: {line.rstrip()[:300]}\n")
                        if matches >= _MAX_MATCHES:
                            return
        except (OSError, UnicodeDecodeError):
            continue
    if not matches:
        fail("no match")


def files_below(path: str) -> list[str]:
    if os.path.isfile(path):
        return [path]
    paths: list[str] = []
    for folder, folders, files in os.walk(path):
        folders[:] = sorted(name for name in folders if not name.startswith(".") and name != "__pycache__")
        paths += [os.path.join(folder, name) for name in sorted(files)]
    return paths


def edit(request: dict[str, Any]) -> None:
    path, old, new = (str(request[key]) for key in ("path", "old", "new"))
    if not old:
        if os.path.exists(path):
            fail(f"{path} exists; give the text to replace as old")
        os.makedirs(os.path.dirname(os.path.abspath(path)), exist_ok=True)
        text = ""
    else:
        text = text_of(path)
        if text.count(old) != 1:
            fail(f"old occurs {text.count(old)} times in {path}; it must occur once")
    write(path, text.replace(old, new, 1) if old else new)


def insert(request: dict[str, Any]) -> None:
    """After a line; 0 is before the first."""
    path, after, new = str(request["path"]), int(request["after"]), str(request["new"])
    lines = lines_of(path)
    if not 0 <= after <= len(lines):
        fail(f"{path} has {len(lines)} lines; there is no line {after}")
    if after and not lines[after - 1].endswith("\n"):
        lines[after - 1] += "\n"
    write(path, "".join([*lines[:after], new if new.endswith("\n") else f"{new}\n", *lines[after:]]))


def write(path: str, text: str) -> None:
    try:
        with open(path, "w", encoding="utf-8", newline="") as file:
            file.write(text)
    except OSError as error:
        fail(f"{path}: {error.strerror}")
    sys.stdout.write(f"{path} is changed\n")


def main() -> None:
    request = json.load(sys.stdin)
    try:
        {"view": view, "search": search, "edit": edit, "insert": insert}[request.pop("tool")](request)
    except KeyError as error:
        fail(f"the argument {error} is missing")
    except (TypeError, ValueError, OverflowError) as error:
        fail(f"an argument is wrong: {error}")


main()
