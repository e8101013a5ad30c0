"""Which of a run's checkpoints a resume starts from: real files, no trainer."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from libra_core.engines.checkpoint_files import (
    MARKER,
    PROGRESS,
    RNG,
    chosen_checkpoint,
    complete_checkpoints,
    damage_of,
    foreign_model,
    prune_checkpoints,
    put_in_place,
    set_aside_newer,
    write_marker,
)
from libra_core.engines.model_folder import DecoderShape
from libra_core.errors import CheckpointError

OLD = json.loads((Path(__file__).parents[1] / "runtime" / "data" / "progress_362dc83.json").read_text())
"""As commit 362dc83 wrote it."""
MODEL = DecoderShape(**OLD["model"])


def checkpoint(run_dir: Path, step: int, *, shard: bytes = b"weights") -> Path:
    folder = run_dir / "checkpoints" / f"step-{step:06d}"
    (folder / "shards").mkdir(parents=True)
    (folder / "shards" / "0.distcp").write_bytes(shard)
    (folder / RNG).write_bytes(b"state")
    (folder / PROGRESS).write_text(json.dumps({"model": OLD["model"], "step": step}))
    write_marker(folder)
    return folder


def cut_off(run_dir: Path, step: int) -> Path:
    folder = run_dir / "checkpoints" / f"step-{step:06d}.partial"
    (folder / "shards").mkdir(parents=True)
    return folder


def chosen(run_dir: Path, named: Path | None = None) -> tuple[Path, list[str]]:
    said: list[str] = []
    return chosen_checkpoint(run_dir, named, said.append), said


def test_a_save_that_was_cut_off_does_not_hide_the_checkpoint_before_it(tmp_path: Path) -> None:
    whole = checkpoint(tmp_path, 4)
    cut_off(tmp_path, 6)
    assert chosen(tmp_path) == (whole, [])


def test_steps_are_ordered_as_numbers(tmp_path: Path) -> None:
    checkpoint(tmp_path, 999_999)
    newest = checkpoint(tmp_path, 1_000_000)
    assert chosen(tmp_path)[0] == newest


@pytest.mark.parametrize("damage", ["cut", "flipped", "missing", "marker", "another marker", "empty marker"])
def test_the_last_whole_checkpoint_is_used_and_said(tmp_path: Path, damage: str) -> None:
    whole, newest = checkpoint(tmp_path, 4), checkpoint(tmp_path, 6)
    shard = newest / "shards" / "0.distcp"
    match damage:
        case "cut":
            shard.write_bytes(b"weig")
        case "flipped":
            shard.write_bytes(b"Weights")
        case "missing":
            shard.unlink()
        case "marker":
            (newest / MARKER).write_bytes(b"\xff{")
        case "another marker":
            (newest / MARKER).write_text("[]")
        case _:
            (newest / MARKER).write_text("{}")
    found, said = chosen(tmp_path)
    assert found == whole
    assert len(said) == 1
    assert "step-000006" in said[0]
    assert "damaged" in said[0]
    assert said[0].endswith("the run goes on from step-000004")


def test_a_run_without_a_whole_checkpoint_names_what_is_wrong_with_each(tmp_path: Path) -> None:
    for step in (4, 6):
        (checkpoint(tmp_path, step) / "shards" / "0.distcp").unlink()
    with pytest.raises(CheckpointError, match=r"no checkpoint .* is whole: .*step-000006.*step-000004.*start the run anew"):
        chosen(tmp_path)


def test_a_run_with_only_a_cut_off_save_says_so(tmp_path: Path) -> None:
    cut_off(tmp_path, 2)
    with pytest.raises(CheckpointError, match=r"no checkpoint yet, only a save that was cut off \(step-000002.partial\)"):
        chosen(tmp_path)


def test_another_checkpoint_can_be_named(tmp_path: Path) -> None:
    older, _ = checkpoint(tmp_path, 4), checkpoint(tmp_path, 6)
    assert chosen(tmp_path, older) == (older, [])


def test_a_named_checkpoint_that_is_damaged_is_refused_with_the_whole_ones(tmp_path: Path) -> None:
    checkpoint(tmp_path, 4)
    (checkpoint(tmp_path, 6) / RNG).write_bytes(b"s")
    with pytest.raises(CheckpointError, match=r"rng.safetensors has 1 bytes instead of 5.*whole ones: step-000004"):
        chosen(tmp_path, tmp_path / "checkpoints" / "step-000006")


def test_pruning_counts_complete_ones_and_removes_cut_off_ones(tmp_path: Path) -> None:
    kept = [checkpoint(tmp_path, step) for step in (2, 4, 6)][1:]
    cut_off(tmp_path, 5)
    cut_off(tmp_path, 8)
    prune_checkpoints(tmp_path / "checkpoints", keep=2)
    assert sorted((tmp_path / "checkpoints").iterdir()) == kept


def test_what_was_saved_after_the_named_checkpoint_is_not_the_newest_any_more(tmp_path: Path) -> None:
    older, newer = checkpoint(tmp_path, 4), checkpoint(tmp_path, 6)
    (aside,) = set_aside_newer(older)
    assert chosen(tmp_path) == (older, [])
    prune_checkpoints(tmp_path / "checkpoints", keep=1)
    assert damage_of(aside) is None, "a person may still want it"
    assert not newer.exists()
    assert chosen(tmp_path, aside)[0] == aside


def test_a_save_under_a_name_that_is_taken_replaces_it(tmp_path: Path) -> None:
    old = checkpoint(tmp_path, 4, shard=b"old")
    fresh = checkpoint(tmp_path / "elsewhere", 4, shard=b"new")
    put_in_place(fresh, old)
    assert (old / "shards" / "0.distcp").read_bytes() == b"new"
    assert complete_checkpoints(tmp_path / "checkpoints") == list((tmp_path / "checkpoints").iterdir()) == [old]


def test_a_checkpoint_of_another_model_is_told_from_a_damaged_one(tmp_path: Path) -> None:
    folder = checkpoint(tmp_path, 4)
    assert foreign_model(folder, MODEL) is None
    deeper = replace(MODEL, num_layers=8)
    assert "holds a model with num_layers 4, but the run trains 8" in str(foreign_model(folder, deeper))


def test_a_checkpoint_under_the_name_of_another_step_is_passed_over(tmp_path: Path) -> None:
    for step in (4, 6):
        made = checkpoint(tmp_path, step)
        (made / PROGRESS).write_text(json.dumps({"model": OLD["model"], "progress": {"version": step}}))
        write_marker(made)
    older, newer = (tmp_path / "checkpoints" / f"step-{step:06d}" for step in (4, 6))
    assert chosen(tmp_path) == (newer, [])
    swapped = older.rename(tmp_path / "checkpoints" / "step-000008")
    said = f"{swapped} holds the weights after step 4, so it was renamed or copied"
    found, heard = chosen(tmp_path)
    assert found == newer
    assert heard[0].startswith(said)
    with pytest.raises(CheckpointError, match=f"{said}.*; whole ones: step-000006"):
        chosen(tmp_path, swapped)


def test_a_checkpoint_that_is_a_link_is_pruned_and_replaced_as_a_link(tmp_path: Path) -> None:
    elsewhere = checkpoint(tmp_path / "elsewhere", 2)
    linked = tmp_path / "checkpoints" / elsewhere.name
    newest = checkpoint(tmp_path, 4)
    linked.symlink_to(elsewhere)
    assert complete_checkpoints(linked.parent) == [linked, newest]
    prune_checkpoints(linked.parent, 1)
    assert [path.name for path in linked.parent.iterdir()] == [newest.name]
    linked.symlink_to(elsewhere)
    put_in_place(cut_off(tmp_path, 2), linked)
    assert not linked.is_symlink()
    assert sorted(path.name for path in linked.parent.iterdir()) == [linked.name, newest.name]
    assert damage_of(elsewhere) is None
