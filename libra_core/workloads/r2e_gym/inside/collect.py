"""What a policy changed: every file that differs from the manifest on standard input, as one JSON object of texts.

A link counts as removed, bytes that are no text too: neither can be carried into another sandbox safely. Exit code 3: more than
can be carried. Folders are walked without recursion, as the policy may nest them as deep as it likes.
"""

import contextlib
import hashlib
import json
import os
import sys
from collections.abc import Iterator

_MAX_BYTES = 1_000_000


def files_below(root: str) -> Iterator[str]:
    """Plain files by their path from `root`, caches left out."""
    folders = [""]
    while folders:
        folder = folders.pop()
        with contextlib.suppress(OSError), os.scandir(folder or root) as entries:
            for entry in sorted(entries, key=lambda entry: entry.name):
                path = f"{folder}/{entry.name}" if folder else entry.name
                if entry.is_dir(follow_symlinks=False):
                    if entry.name not in {"__pycache__", ".git"}:
                        folders.append(path)
                elif entry.is_file(follow_symlinks=False) and not entry.name.endswith(".pyc"):
                    yield path


def main() -> None:
    manifest: dict[str, str] = json.load(sys.stdin)
    changed: dict[str, str | None] = {}
    present: set[str] = set()
    total = 0
    for path in files_below("."):
        try:
            with open(path, "rb") as file:
                data = file.read(_MAX_BYTES + 1)
            text = data.decode("utf-8")
        except (OSError, UnicodeDecodeError):
            continue
        present.add(path)
        if manifest.get(path) != hashlib.sha256(data).hexdigest():
            changed[path] = text
            total += len(data)
            if total > _MAX_BYTES:
                raise SystemExit(3)
    changed.update(dict.fromkeys(manifest.keys() - present))
    json.dump(changed, sys.stdout)


main()
