"""The prefix tree on disk."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from libra_core.errors import CheckpointError
from libra_core.routing.prefix_tree import PrefixTree
from libra_core.routing.tree_file import encode_tree, load_newest_tree, load_tree, previous_of, save_tree
from libra_core.routing.tree_settings import TreeSettings
from libra_core.types.ids import PromptId
from support.routing import OK, TIMEOUT, finished


def tree_of(count: int) -> PrefixTree:
    tree = PrefixTree(TreeSettings(half_life=50.0))
    for number in range(count):
        tree.learn(finished([10 + number, 20], [TIMEOUT if number % 3 else OK], prompt=f"p{number % 4}"))
    return tree


def test_a_loaded_tree_predicts_and_learns_on_as_before(tmp_path: Path) -> None:
    tree = tree_of(100)
    save_tree(tree, tmp_path / "tree")
    loaded = load_tree(tmp_path / "tree", tree.settings)
    for _ in range(2):
        for prompt in ("p1", "unseen"):
            a, b = tree.start(PromptId(prompt)), loaded.start(PromptId(prompt))
            tree.advance(a, TIMEOUT)
            loaded.advance(b, TIMEOUT)
            np.testing.assert_array_equal(tree.predict(a).shares, loaded.predict(b).shares)
        for one in (tree, loaded):
            one.learn(finished([5, 900], [TIMEOUT], prompt="p1"))
    assert loaded.learnt == tree.learnt == 102
    assert encode_tree(loaded) == encode_tree(tree)


@settings(max_examples=30, deadline=None)
@given(st.data())
def test_any_flipped_or_missing_byte_is_refused(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    content = encode_tree(tree_of(10))
    place = data.draw(st.integers(min_value=0, max_value=len(content) - 1))
    cut = data.draw(st.booleans())
    damaged = content[:place] if cut else content[:place] + bytes([content[place] ^ 0x55]) + content[place + 1 :]
    path = tmp_path_factory.mktemp("tree") / "tree"
    path.write_bytes(damaged)
    with pytest.raises(CheckpointError):
        load_tree(path, tree_of(0).settings)


def test_refusal_names_the_file_and_the_one_before_it(tmp_path: Path) -> None:
    path = tmp_path / "tree"
    save_tree(tree_of(10), path)
    save_tree(tree_of(20), path)
    path.write_bytes(path.read_bytes()[:-5])
    with pytest.raises(CheckpointError, match=r"tree is damaged.*tree\.previous"):
        load_tree(path)
    assert load_tree(previous_of(path)).learnt == 10


def test_a_run_goes_on_from_the_last_good_file(tmp_path: Path) -> None:
    path, settings_ = tmp_path / "tree", tree_of(0).settings
    assert load_newest_tree(path, settings_)[0].learnt == 0
    save_tree(tree_of(10), path)
    save_tree(tree_of(20), path)
    path.write_bytes(b"rubbish")
    tree, refusal = load_newest_tree(path, settings_)
    assert tree.learnt == 10
    assert refusal is not None
    assert "rubbish" not in refusal


def test_a_tree_of_other_settings_is_not_taken(tmp_path: Path) -> None:
    save_tree(tree_of(10), tmp_path / "tree")
    with pytest.raises(CheckpointError, match="move it away"):
        load_tree(tmp_path / "tree", TreeSettings(half_life=7.0))


def test_a_later_version_is_refused(tmp_path: Path) -> None:
    content = encode_tree(tree_of(3)).replace(b'"version": 1', b'"version": 9', 1)
    (tmp_path / "tree").write_bytes(content)
    with pytest.raises(CheckpointError, match="version 9"):
        load_tree(tmp_path / "tree")


def test_a_writer_that_dies_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "tree"
    save_tree(tree_of(10), path)

    def crash(_: int) -> None:
        raise OSError("disk full")

    monkeypatch.setattr("os.fsync", crash)
    with pytest.raises(OSError, match="disk full"):
        save_tree(tree_of(20), path)
    assert load_tree(path).learnt == 10


def test_a_tree_that_cannot_be_read_gives_way_to_the_one_before_it(tmp_path: Path) -> None:
    path = tmp_path / "tree"
    save_tree(tree_of(10), previous_of(path))
    path.mkdir()
    tree, refusal = load_newest_tree(path, tree_of(0).settings)
    assert tree.learnt == tree_of(10).learnt
    assert refusal is not None
    assert "cannot be read" in refusal
