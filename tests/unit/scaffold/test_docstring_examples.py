"""Examples in docstrings give what they say."""

import doctest
import importlib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
MODULES = [path for path in sorted((ROOT / "libra_core").rglob("*.py")) if "    >>> " in path.read_text()]


@pytest.mark.parametrize("path", MODULES, ids=lambda path: path.stem)
def test_an_example_gives_what_it_says(path: Path) -> None:
    module = importlib.import_module(".".join(path.relative_to(ROOT).with_suffix("").parts))
    results = doctest.testmod(module)
    assert results.attempted > 0
    assert results.failed == 0


def test_the_packing_and_the_plan_have_one() -> None:
    assert {"packing", "plan"} <= {path.stem for path in MODULES}
