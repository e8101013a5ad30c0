"""How far a checkpoint is, read from the file of any version."""

import json
from pathlib import Path
from typing import Any

import pytest

from libra_core.engines.checkpoint_files import PROGRESS
from libra_core.engines.megatron.checkpoint import read_progress
from libra_core.errors import CheckpointError

SAVED: dict[str, Any] = {"version": 4, "adam_steps": 3, "batch_id": "b", "report": None}


def test_progress_is_read(tmp_path: Path) -> None:
    (tmp_path / PROGRESS).write_text(json.dumps({"progress": SAVED, "extra": {"cursor": 7}}))
    progress, extra = read_progress(tmp_path)
    assert (progress.version, progress.adam_steps, extra) == (4, 3, {"cursor": 7})


@pytest.mark.parametrize(
    "content",
    [
        {"extra": {}},
        {"progress": SAVED},
        {"progress": {"version": 4}, "extra": {}},
        {"progress": SAVED | {"report": {"a_key_of_the_future": 1}}, "extra": {}},
        {"progress": [], "extra": {}},
        [],
    ],
)
def test_a_file_of_another_version_is_one_sentence(tmp_path: Path, content: object) -> None:
    (tmp_path / PROGRESS).write_text(json.dumps(content))
    with pytest.raises(CheckpointError, match=r"progress\.json is not as this version of Libra writes it .*; resume"):
        read_progress(tmp_path)
