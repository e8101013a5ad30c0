from pathlib import Path

from flows.hooks import end_as, end_run_folder
from libra_core.tracking.run_folder import Journal, read_journal, write_journal
from libra_core.types.session import SessionRef
from support.session import FakeBackend
from tasks.connection import using


def test_open_session_is_closed_once(tmp_path: Path) -> None:
    session = SessionRef(run_id="r", run_dir=str(tmp_path), ray_address="local", namespace="n")
    write_journal(tmp_path, Journal(session=session))
    backend = FakeBackend()
    with using(backend):
        end_run_folder(tmp_path, "KILLED")
        end_run_folder(tmp_path, "KILLED")
    assert backend.closed == 1
    assert read_journal(tmp_path).session is None


def test_hooks_have_names_that_prefect_can_show() -> None:
    assert end_as("FAILED").__name__ == "end_as_failed"
