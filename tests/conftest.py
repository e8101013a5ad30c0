"""For all tests."""

import gc

import pytest
from hypothesis import settings

settings.register_profile("libra", deadline=None)
"""No time limit for a single example: the machine is shared, and a pause of it is no fault of the code."""
settings.load_profile("libra")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The file that compiles the simulator's kernel goes first: a fresh clone compiles once, and no worker waits at the end."""
    items.sort(key=lambda item: item.path.name != "test_breakdowns.py")


def pytest_collection_finish() -> None:
    """What the imports made stays until the end: nobody need look for garbage among its million objects at every collection."""
    gc.collect()
    gc.freeze()
