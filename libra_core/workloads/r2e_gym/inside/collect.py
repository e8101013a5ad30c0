"""What a policy changed: every file that differs from the manifest on standard input, as one JSON object of texts.

A link counts as removed, bytes that are no text too: neither can be carried into another sandbox safely.
"""

import hashlib
import json
import os
import sys

_MAX_BYTES = 1_000_000


def main() -> None:
    manifest: dict[str, str] = json.load(sys.stdin)
    changed: dict[str, str | None] = {}
    present: set[str] = set()
    total = 0
    for folder, folders, files in os.walk("."):
        folders[:] = sorted(name for name in folders if name not in {"__pycache__", ".git"})
        for name in sorted(files):
            path = os.path.relpath(os.path.join(folder, name), ".")
            if os.path.islink(path) or name.endswith(".pyc") or not os.path.isfile(path):
                continue
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
