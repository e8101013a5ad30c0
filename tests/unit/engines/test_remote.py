"""Calling an object in another process; the engines' checks stand on it."""

import os
import signal
from collections.abc import Iterator

import pytest

from libra_core.engines.verification.remote import RemoteError, RemoteObject


@pytest.fixture
def numbers() -> Iterator[RemoteObject]:
    with RemoteObject("collections:deque", [1, 2, 3], environment={}) as remote:
        yield remote


def test_methods_answer_from_the_object_over_there(numbers: RemoteObject) -> None:
    numbers.call("append", 4)
    assert numbers.call("pop") == 4
    assert numbers.process.pid != os.getpid()


def test_errors_travel_with_their_type(numbers: RemoteObject) -> None:
    with pytest.raises(ValueError, match="not in deque"):
        numbers.call("remove", 99)


def test_environment_is_set_before_the_process_starts() -> None:
    with RemoteObject("os:getenv", "LIBRA_TEST_VALUE", environment={"LIBRA_TEST_VALUE": "7"}) as remote:
        assert remote.call("strip") == "7"


def test_open_and_later_calls_fail_when_the_process_dies(numbers: RemoteObject) -> None:
    numbers.call("pop")
    os.kill(numbers.process.pid, signal.SIGKILL)
    with pytest.raises(RemoteError, match="ended before it answered"):
        numbers.call("pop", timeout_s=10.0)
    with pytest.raises(RemoteError, match="ended before it answered"):
        numbers.call("pop", timeout_s=10.0)
