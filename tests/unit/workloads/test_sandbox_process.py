"""Children read by the event loop: every wait for one ends."""

import asyncio
import gc

import pytest

from libra_core.errors import SandboxLostError
from libra_core.workloads.sandbox import process
from libra_core.workloads.sandbox.process import Conversation, Program, converse


async def _talk(script: str, deadline_s: float) -> Conversation:
    program = Program(argv=("/bin/sh", "-c", script), environment=None)
    return await converse(program, order=b"", output_bytes=100, deadline_s=deadline_s)


def test_what_escapes_the_kill_and_keeps_the_pipes_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "GRACE_S", 0.2)
    with pytest.raises(SandboxLostError, match="pipes"):
        asyncio.run(asyncio.wait_for(_talk("setsid sleep 5 & exit 0", 0.2), 4.0))


def test_a_cancelled_command_leaves_no_complaint_of_the_event_loop() -> None:
    complaints: list[object] = []

    async def cancelled() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda loop, context: complaints.append(context))
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(_talk("sleep 5", 60.0), 0.2)
        gc.collect()

    asyncio.run(cancelled())
    gc.collect()
    assert complaints == []
