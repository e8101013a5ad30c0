"""Blocks in a shared folder: found whole or not at all, by version and degree, within a bound."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from libra_core.engines.vllm.kv_folder import BlockAddress, KvFolder, Payload

LAYERS, HEADS, BYTES = 3, 4, 10
BLOCK_BYTES = LAYERS * HEADS * BYTES + 20
"""Header included."""


def folder(root: Path, layout: str = "layout", blocks: int = 100) -> KvFolder:
    return KvFolder(root, layout, blocks * BLOCK_BYTES)


def content(seed: int, heads: int = HEADS) -> Payload:
    return np.random.default_rng(seed).integers(0, 256, (LAYERS, heads, BYTES), dtype=np.uint8)


def address(name: str, version: int = 1, degree: int = 1) -> BlockAddress:
    return BlockAddress(version=version, degree=degree, name=name)


def save(target: KvFolder, names: str, version: int = 1, at_ns: int = 1000) -> None:
    for number, name in enumerate(names):
        target.write(address(name, version), 0, content(ord(name)), saved_ns=at_ns - number)


def test_a_block_comes_back_as_it_was_saved(tmp_path: Path) -> None:
    save(folder(tmp_path), "a")
    found = folder(tmp_path).read_own(address("a"), 0)
    assert found is not None
    assert np.array_equal(found, content(ord("a")))


@given(saved=st.sampled_from([1, 2, 4]), read=st.sampled_from([1, 2, 4]))
def test_every_degree_reads_its_heads_from_every_other(tmp_path_factory: pytest.TempPathFactory, saved: int, read: int) -> None:
    target = folder(tmp_path_factory.mktemp("kv"))
    whole = content(7)
    per_saved, per_read = HEADS // saved, HEADS // read
    for rank in range(saved):
        target.write(address("a", degree=saved), rank, whole[:, rank * per_saved : (rank + 1) * per_saved], saved_ns=1)
    parts = [
        target.read(address("a", degree=saved), range(rank * per_read, (rank + 1) * per_read), HEADS) for rank in range(read)
    ]
    assert np.array_equal(np.concatenate([part for part in parts if part is not None], axis=1), whole)


def test_the_longest_prefix_counts_and_a_hole_ends_it(tmp_path: Path) -> None:
    target = folder(tmp_path)
    save(target, "abd")
    assert target.longest(1, list("abcd"), [1, 2]) == (1, 2)
    assert target.longest(1, list("cd"), [1])[1] == 0


def test_a_block_counts_once_all_ranks_have_saved_it(tmp_path: Path) -> None:
    target = folder(tmp_path)
    target.write(address("a", degree=2), 0, content(1, heads=2), saved_ns=1)
    assert target.longest(1, ["a"], [2])[1] == 0
    target.write(address("a", degree=2), 1, content(2, heads=2), saved_ns=1)
    assert target.longest(1, ["a"], [1, 2]) == (2, 1)
    assert target.degrees(1) == [2]


def test_kv_of_another_version_or_layout_is_not_found(tmp_path: Path) -> None:
    save(folder(tmp_path), "a", version=1)
    assert folder(tmp_path).longest(2, ["a"], [1])[1] == 0
    assert folder(tmp_path, layout="bfloat16").longest(1, ["a"], [1])[1] == 0


def test_older_versions_go_with_a_publication(tmp_path: Path) -> None:
    target = folder(tmp_path)
    for version in (1, 2, 3):
        save(target, "ab", version=version)
    target.drop_before(3)
    assert [target.longest(version, list("ab"), [1])[1] for version in (1, 2, 3)] == [0, 0, 2]


@pytest.mark.parametrize("damage", ["flip", "cut", "empty", "other"])
def test_a_damaged_file_is_not_there(tmp_path: Path, damage: str) -> None:
    target = folder(tmp_path)
    save(target, "a")
    (path,) = [path for path in tmp_path.rglob("*") if path.is_file()]
    data = bytearray(path.read_bytes())
    if damage == "flip":
        data[-1] ^= 1
    path.write_bytes({"flip": bytes(data), "cut": bytes(data[:-5]), "empty": b"", "other": b"x" * len(data)}[damage])
    assert target.read_own(address("a"), 0) is None
    assert target.read(address("a"), range(HEADS), HEADS) is None


def test_a_missing_file_is_not_there(tmp_path: Path) -> None:
    assert folder(tmp_path).read_own(address("a"), 0) is None
    assert folder(tmp_path).read(address("a", degree=2), range(HEADS), HEADS) is None


def test_the_oldest_save_goes_first_and_its_end_before_its_beginning(tmp_path: Path) -> None:
    target = folder(tmp_path, blocks=4)
    save(target, "ab")
    save(target, "cd", at_ns=2000)
    target.make_room(BLOCK_BYTES)
    assert target.longest(1, ["a"], [1])[1] == 1
    assert target.longest(1, ["b"], [1])[1] == 0
    target.make_room(2 * BLOCK_BYTES)
    assert target.longest(1, ["a"], [1])[1] == 0
    assert target.longest(1, list("cd"), [1])[1] == 2


def test_no_more_is_admitted_than_the_bound(tmp_path: Path) -> None:
    target = folder(tmp_path, blocks=4)
    save(target, "abcd")
    assert target.make_room(10 * BLOCK_BYTES) == 4 * BLOCK_BYTES
    assert target.held_bytes() == 0


def test_a_save_that_finds_no_place_leaves_nothing_behind(tmp_path: Path) -> None:
    target = folder(tmp_path)
    save(target, "a")
    (tmp_path / "layout" / "v000001" / "tp1" / "b.0").mkdir(parents=True)
    with pytest.raises(IsADirectoryError):
        target.write(address("b"), 0, content(1), saved_ns=1)
    assert not list(tmp_path.rglob("*.partial"))
