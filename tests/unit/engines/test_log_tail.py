"""The line of a dead engine's log that tells why is found among the others."""

import os
from pathlib import Path
from types import SimpleNamespace

import pytest
from ray.exceptions import ActorDiedError

from libra_core.engines.log_tail import last_words, logs_of_actor, telling_line
from libra_core.errors import ResourceError
from libra_core.runtime.cluster.engine_slots import EngineStarter

VLLM = """:job_id:01000000
(EngineCore pid=14118) ERROR 11-30 23:53:55 [core.py:1512] Traceback (most recent call last):
(EngineCore pid=14118) ERROR 11-30 23:53:55 [core.py:1512]   File "cpu_attn.py", line 253, in build
(EngineCore pid=14118) ERROR 11-30 23:53:55 [core.py:1512] RuntimeError: Unsupported CPU attention configuration: head_dim=16
(MainProcess pid=13888) ERROR 11-30 23:53:55 [async_llm.py:906]     raise self._format_exception(outputs) from None
(MainProcess pid=13888) ERROR 11-30 23:53:55 [async_llm.py:906] vllm.EngineDeadError: EngineCore encountered an issue. See above.
resource_tracker.py:254: UserWarning: resource_tracker: There appear to be 1 leaked semaphore objects
"""
TELLING = "RuntimeError: Unsupported CPU attention configuration: head_dim=16"


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (VLLM, TELLING),
        ("\x1b[36m(EngineCore pid=7)\x1b[0;0m ValueError: no such kernel\nbye\n", "ValueError: no such kernel"),
        ("INFO ready\nEngine core died unexpectedly\nbye\n", "Engine core died unexpectedly"),
        ("torch.OutOfMemoryError: 3 GiB\nRuntimeError: Engine core initialization failed. See root cause above.\n",
         "torch.OutOfMemoryError: 3 GiB"),
        ("all is well\n", ""),
        ("", ""),
    ],
)  # fmt: skip
def test_the_telling_line(text: str, line: str) -> None:
    assert telling_line(text) == line


def test_the_newest_log_that_tells_anything_is_quoted(tmp_path: Path) -> None:
    for age, (name, text) in enumerate({"quiet": "well\n", "new": "ValueError: new\n", "old": "ValueError: old\n"}.items()):
        (tmp_path / name).write_text(text)
        os.utime(tmp_path / name, (1000 - age, 1000 - age))
    assert last_words([*tmp_path.iterdir(), tmp_path / "missing"]) == "ValueError: new"


def test_a_start_whose_actor_died_quotes_the_log_of_that_process(tmp_path: Path) -> None:
    logs = tmp_path / "session_1" / "logs"
    logs.mkdir(parents=True)
    (logs / "worker-ab-01000000-4711.out").write_text(VLLM)
    (logs / "worker-cd-01000000-4712.out").write_text("ValueError: of another engine\n")
    assert [log.name for log in logs_of_actor(tmp_path, "The actor died.\n\tpid: 4711\n")] == ["worker-ab-01000000-4711.out"]
    error = ResourceError("engine-0 is gone")
    error.__cause__ = ActorDiedError()
    error.__cause__.__str__ = lambda: ""  # type: ignore[method-assign]
    starter = EngineStarter(SimpleNamespace(), "", str(tmp_path))  # type: ignore[arg-type]
    assert starter._last_words(error) == "", "Ray's sentence names no process"
    error.__cause__ = type("Died", (ActorDiedError,), {"__str__": lambda _self: "died\n\tpid: 4711"})()
    assert starter._last_words(error) == f"; its log ends with: {TELLING}"
    assert EngineStarter(SimpleNamespace(), "", None)._last_words(error) == ""  # type: ignore[arg-type]
