"""The figures of `tests/checks/structure.py`, on a room made for the test."""

import importlib.util
from pathlib import Path

ROOT = Path(__file__).parents[3]
_spec = importlib.util.spec_from_file_location("structure", ROOT / "tests" / "checks" / "structure.py")
assert _spec is not None
assert _spec.loader is not None
structure = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(structure)


def _room(folder: Path) -> Path:
    for name, text in {
        "pkg/room/__init__.py": "",
        "pkg/room/base/__init__.py": "",
        "pkg/room/base/rpc.py": "import json\n",
        "pkg/room/base/actors.py": "from pkg.room.base.rpc import ask\n",
        "pkg/room/driver/session.py": "from pkg.room.base import actors\nfrom pkg.other import thing\n\n\nclass Session: ...\n",
    }.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return folder


def test_arrows_and_floors_count_imports_inside_the_room_only(tmp_path: Path) -> None:
    graph = structure.module_graph(_room(tmp_path), "pkg/room")
    assert graph["driver.session"] == {"base", "base.actors"}
    assert graph["base.actors"] == {"base.rpc"}
    assert structure.arrows(graph) == 3
    assert structure.floors(graph) == 3


def test_folders_are_nodes_of_their_own(tmp_path: Path) -> None:
    folders = structure.folder_graph(structure.module_graph(_room(tmp_path), "pkg/room"))
    assert folders == {"base": set(), "driver": {"base"}}
    assert structure.floors(folders) == 2


def test_a_circle_of_imports_ends() -> None:
    assert structure.floors({"a": {"b"}, "b": {"a"}, "c": {"a"}}) >= 2


def test_sizes_count_classes_and_lines(tmp_path: Path) -> None:
    assert structure.sizes(_room(tmp_path), ("pkg",)) == {"files": 5, "lines": 7, "classes": 1, "median_file": 1}


def test_a_forwarder_passes_on_exactly_what_it_was_given(tmp_path: Path) -> None:
    (tmp_path / "pkg").mkdir()
    (tmp_path / "pkg" / "a.py").write_text(
        "class A:\n"
        "    async def on(self, x, *, y):\n"
        "        'Says why.'\n"
        "        return await self._b.on(x, y=y)\n"
        "    def fixed(self, x):\n"
        "        return self._b.on(x, 1)\n"
        "    def less(self, x, y):\n"
        "        return self._b.on(x)\n"
        "    def made(self, x):\n"
        "        return self.b().on(x)\n"
        "def same(*args):\n"
        "    other(*args)\n"
    )
    assert structure.forwarders(tmp_path, ("pkg",)) == ["pkg/a.py:11 same", "pkg/a.py:2 on"]
