"""One object in a process of its own, with its own environment, called from here.

For checks, tests and benchmarks. Engines and trainers read environment variables at import and register global state, so
two of them never share a process. A run uses Ray actors instead.
"""

import asyncio
import contextlib
import importlib
import inspect
import pickle
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping
from concurrent.futures import Future
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from libra_core.errors import LibraError

_STOP_GRACE_S = 30.0


class RemoteError(LibraError):
    """The hosting process ended while calls were open."""

    exit_code = 3


class RemoteObject:
    """`submit` runs calls beside one another where the object's methods are async. Closing kills what does not end.

    The reader thread owns the answers; the caller's thread owns everything else.
    """

    def __init__(self, target: str, *arguments: Any, environment: Mapping[str, str], log: Path | None = None) -> None:
        """`target` is `package.module:Class`; the object is built there from `arguments`, which travel by pickle.

        What the process prints goes to `log`, or to this process's stderr.
        """
        ours, theirs = socket.socketpair()
        # `env` adds to the inherited environment without this module reading it.
        variables = [f"{name}={value}" for name, value in environment.items()]
        command = ["env", *variables, sys.executable, "-m", __name__, str(theirs.fileno())]
        with log.open("ab") if log else contextlib.nullcontext(sys.stderr) as sink:
            self.process = subprocess.Popen(
                command, pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL, stdout=sink, stderr=sink
            )
        theirs.close()
        self._connection = Connection(ours.detach())
        self._futures: dict[int, Future[Any]] = {}
        self._next_call = 0
        name = f"remote-{self.process.pid}"
        self._reader = threading.Thread(target=self._read, name=name, daemon=True)  # failure: every call gets it
        self._reader.start()
        self._connection.send((target, arguments))

    def __enter__(self) -> "RemoteObject":
        return self

    def __exit__(self, *_exc: object) -> None:
        self.close()

    def submit(self, method: str, *arguments: Any, **named: Any) -> Future[Any]:
        self._next_call += 1
        future = self._futures[self._next_call] = Future[Any]()
        with contextlib.suppress(OSError):
            self._connection.send((self._next_call, method, arguments, named))
        if not self._reader.is_alive() and not future.done():
            future.set_exception(self._ended())
        return future

    def call(self, method: str, *arguments: Any, timeout_s: float = 300.0, **named: Any) -> Any:
        return self.submit(method, *arguments, **named).result(timeout_s)

    def close(self) -> None:
        """Ask the process to end (its object's `stop` runs), then kill it."""
        with contextlib.suppress(OSError):  # it has ended already
            self._connection.send(None)
        try:
            self.process.wait(_STOP_GRACE_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait(_STOP_GRACE_S)

    def _read(self) -> None:
        while True:
            try:
                call, ok, value = self._connection.recv()  # unbounded: whoever calls has a deadline
            except Exception:  # its end, or an answer that cannot be read
                break
            future = self._futures.pop(call)
            future.set_result(value) if ok else future.set_exception(value)
        for future in self._futures.values():
            future.set_exception(self._ended())

    def _ended(self) -> RemoteError:
        return RemoteError(f"process {self.process.pid} ended before it answered; see what it printed")


async def _serve(connection: Connection) -> None:
    loop = asyncio.get_running_loop()
    target, arguments = await loop.run_in_executor(None, connection.recv)  # failure: raised here
    module, _, name = target.partition(":")
    served = getattr(importlib.import_module(module), name)(*arguments)
    tasks: set[asyncio.Task[None]] = set()
    while True:
        try:
            message = await loop.run_in_executor(None, connection.recv)  # failure: raised here
        except EOFError:
            break
        if message is None:
            break
        task = loop.create_task(_answer(connection, served, message))  # failure: the caller gets it
        tasks.add(task)
        task.add_done_callback(tasks.discard)
    if hasattr(served, "stop"):
        await _call(served.stop)


async def _answer(connection: Connection, served: Any, message: tuple[int, str, tuple[Any, ...], dict[str, Any]]) -> None:
    call, method, arguments, named = message
    try:
        answer = (call, True, await _call(getattr(served, method), *arguments, **named))
    except Exception as error:  # travels to the caller
        answer = (call, False, _portable(error))
    try:
        connection.send(answer)
    except (TypeError, AttributeError, pickle.PicklingError) as error:  # an answer that cannot travel
        connection.send((call, False, _portable(error)))


async def _call(method: Any, *arguments: Any, **named: Any) -> Any:
    result = method(*arguments, **named)
    return await result if inspect.isawaitable(result) else result


def _portable(error: Exception) -> Exception:
    """An error whose cause or arguments cannot be pickled keeps its text only."""
    try:
        return pickle.loads(pickle.dumps(error))
    except Exception:
        return RemoteError(f"{type(error).__name__}: {error}")


if __name__ == "__main__":
    asyncio.run(_serve(Connection(int(sys.argv[1]))))
