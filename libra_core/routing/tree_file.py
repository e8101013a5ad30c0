"""The prefix tree on disk: a line that names and seals it, a line of facts, the arrays. Written whole or not at all."""

import hashlib
import io
import json
import os
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from libra_core.errors import CheckpointError
from libra_core.routing.agreement import PromptAgreement
from libra_core.routing.node_table import WIDTH
from libra_core.routing.prefix_tree import PrefixTree
from libra_core.routing.tree_settings import TreeSettings, settings_of
from libra_core.types.ids import PromptId

FORMAT = "libra-prefix-tree"
VERSION = 1


def previous_of(path: Path) -> Path:
    """Where `save_tree` keeps the file that it replaces."""
    return path.with_name(path.name + ".previous")


def encode_tree(tree: PrefixTree) -> bytes:
    """The file's content; rows keep only what is not zero."""
    size = len(tree.table)
    rows = tree.table.rows[:size]
    node, column = np.nonzero(rows)
    arrays = io.BytesIO()
    prompts = json.dumps(list(tree.roots.items())).encode()
    np.savez(
        arrays,
        keys=np.array(tree.table.keys, np.int64),
        filled=np.bincount(node, minlength=size).astype(np.uint8),
        columns=column.astype(np.uint8),
        values=rows[node, column],
        prompts=np.frombuffer(prompts, np.uint8),
    )
    payload = arrays.getvalue()
    facts = {"settings": tree.settings.facts(), "learnt": tree.learnt, "unit": tree.unit, "events": tree.events.kinds()}
    facts["agreement"] = asdict(tree.agreement)
    sealed = json.dumps(facts).encode() + b"\n" + payload
    header = {"format": FORMAT, "version": VERSION, "sha256": hashlib.sha256(sealed).hexdigest()}
    return json.dumps(header).encode() + b"\n" + sealed


def write_tree(content: bytes, path: Path) -> None:
    """Atomic: a reader sees the old file or the new one. The old one stays as `previous_of(path)`."""
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = path.with_name(path.name + ".new")
    with fresh.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    if path.exists():
        path.replace(previous_of(path))
    fresh.replace(path)


def save_tree(tree: PrefixTree, path: Path) -> None:
    write_tree(encode_tree(tree), path)


def load_tree(path: Path, settings: TreeSettings | None = None) -> PrefixTree:
    """Read and verify a tree; with `settings`, it must have been made with these.

    Raises:
        CheckpointError: one sentence; nothing on disk is touched.
    """
    try:
        content = path.read_bytes()
    except OSError as error:
        raise CheckpointError(f"the prefix tree {path} cannot be read: {error}") from None
    line, _, sealed = content.partition(b"\n")
    header = _header(line, path)
    if header["version"] != VERSION:
        raise CheckpointError(f"{path} has version {header['version']} of the format of prefix trees; {VERSION} can be read")
    if hashlib.sha256(sealed).hexdigest() != header["sha256"]:
        raise CheckpointError(f"{path} is damaged: its checksum does not match; the one before it is {previous_of(path)}")
    line, _, payload = sealed.partition(b"\n")
    facts = json.loads(line)
    if settings is not None and settings.facts() != facts["settings"]:
        raise CheckpointError(f"{path} was made with {facts['settings']}, the run asks for {settings.facts()}; move it away")
    return _decode(facts, payload)


def load_newest_tree(path: Path, settings: TreeSettings) -> tuple[PrefixTree, str | None]:
    """The tree at `path`, else the one before it, else an empty one; with a sentence where one was refused."""
    refusals: list[str] = []
    for candidate in (path, previous_of(path)):
        if not candidate.exists():
            continue
        try:
            return load_tree(candidate, settings), "; ".join(refusals) or None
        except CheckpointError as error:
            refusals.append(str(error))
    return PrefixTree(settings), "; ".join(refusals) or None


def _header(line: bytes, path: Path) -> dict[str, Any]:
    try:
        header = json.loads(line)
    except ValueError:
        header = None
    if not isinstance(header, dict) or header.get("format") != FORMAT or not {"version", "sha256"} <= header.keys():
        raise CheckpointError(f"{path} is no prefix tree or is damaged; the one before it is {previous_of(path)}")
    return header


def _decode(facts: dict[str, Any], payload: bytes) -> PrefixTree:
    tree = PrefixTree(settings_of(facts["settings"]))
    with np.load(io.BytesIO(payload), allow_pickle=False) as arrays:
        keys, filled = arrays["keys"], arrays["filled"]
        rows = np.zeros((max(256, len(keys)), WIDTH), np.float32)
        rows[np.repeat(np.arange(len(keys)), filled), arrays["columns"]] = arrays["values"]
        prompts = json.loads(arrays["prompts"].tobytes())
    tree.table.restore(rows, keys.tolist())
    tree.roots = {PromptId(prompt): node for prompt, node in prompts}
    tree.learnt, tree.unit = facts["learnt"], facts["unit"]
    tree.agreement = PromptAgreement(**facts["agreement"])
    for kind in facts["events"]:
        tree.events.of_kind((kind[0], kind[1], kind[2]))
    return tree
