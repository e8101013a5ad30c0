"""A wait without a bound, or work whose failure nobody hears of, does not get into the product unsaid."""

from pathlib import Path

import pytest

from tests.checks.waits import ROOT, check_file, findings


def test_the_product_has_no_unsaid_wait() -> None:
    assert findings(ROOT) == []


@pytest.mark.parametrize(
    "body",
    [
        "await store.take.remote(1)",
        "answer = store.take.remote(1)\n    await answer",
        "await asyncio.gather(*(engine.hold.remote() for engine in engines))",
        "answers = [engine.hold.remote() for engine in engines]\n    await asyncio.gather(*answers)",
        "await event.wait()",
        "ray.get(reference)",
        "ray.wait([reference])",
        "thread.join()",
        "queue.get()",
        "done.result()",
        "await places.acquire()",
        "subprocess.run(['true'])",
        "loop.create_task(work())",
        "threading.Thread(target=work).start()",
        "loop.run_in_executor(None, work)",
    ],
)
def test_it_is_found(body: str) -> None:
    assert len(list(check_file("a.py", f"async def f():\n    {body}\n"))) == 1


@pytest.mark.parametrize(
    "body",
    [
        "await reply('the flow', 'the store', store.take.remote(1), 5.0)",
        "answer = store.take.remote(1)\n    await reply('the flow', 'the store', answer, 5.0)",
        "async with asyncio.timeout(5.0):\n        await store.take.remote(1)",
        "await asyncio.wait_for(store.take.remote(1), 5.0)",
        "ray.get(reference, timeout=5.0)",
        "thread.join(5.0)",
        "await event.wait()  # unbounded: publications set it",
        "loop.create_task(work())  # failure: `_reap`",
        "', '.join(words)",
        "values.get(key)",
        "context.get()",
    ],
)
def test_it_is_none(body: str) -> None:
    assert list(check_file("a.py", f"async def f():\n    {body}\n")) == []


def test_a_finding_says_where(tmp_path: Path) -> None:
    (tmp_path / "flows").mkdir()
    (tmp_path / "flows" / "a.py").write_text("import ray\nray.get(1)\n")
    (found,) = findings(tmp_path)
    assert (found.path, found.line) == ("flows/a.py", 2)
