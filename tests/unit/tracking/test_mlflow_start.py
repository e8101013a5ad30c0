import os
import sqlite3
import time
from pathlib import Path
from threading import Event, Thread

import pytest
from mlflow import MlflowClient

from libra_core.config import LibraConfig
from libra_core.config.loading import process_environment
from libra_core.errors import ResourceError
from libra_core.tracking.mlflow_tracker import (
    RunLabels,
    end_run,
    flat_params,
    knows_run,
    make_store,
    mlflow_uri,
    open_experiment,
    start_run,
)
from libra_core.tracking.one_writer import database_file, one_writer
from libra_core.tracking.open import check_tracker
from libra_core.tracking.run_folder import Journal, read_journal, write_journal

ODD = "50%25 a?b #1"


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A root whose database was made once, for tests that only need one: making it takes seconds."""
    root = tmp_path_factory.mktemp("roots") / ODD
    open_experiment(_config(root), str(mlflow_uri(_config(root))))
    return root


@pytest.fixture(autouse=True)
def _without_the_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)


def _config(root: Path, uri: object = None) -> LibraConfig:
    return LibraConfig.model_validate({"run": {"root": str(root)}, "tracking": {"mlflow_uri": uri}})


def _damaged(file: Path, how: str) -> None:
    match how:
        case "text":
            file.write_text("not a database" * 100)
        case "folder":
            file.mkdir()
        case "cut":
            with sqlite3.connect(file) as database:
                database.execute("CREATE TABLE experiments (id INTEGER, name TEXT)")
                database.executemany("INSERT INTO experiments VALUES (?, ?)", [(number, "x" * 500) for number in range(100)])
            database.close()
            file.write_bytes(file.read_bytes()[:5000])
        case _:
            raise ValueError(how)


def test_default_store_lies_under_the_run_root(tmp_path: Path) -> None:
    assert mlflow_uri(_config(tmp_path)) == f"sqlite:///{tmp_path.resolve()}/mlflow.db"


@pytest.mark.parametrize("word", ["off", False])
def test_off_means_no_store_also_as_yaml_reads_it(tmp_path: Path, word: object) -> None:
    assert mlflow_uri(_config(tmp_path, word)) is None


def test_the_environment_names_the_store_unless_the_configuration_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://tracking:5000")
    assert mlflow_uri(_config(tmp_path)) == "http://tracking:5000"
    assert mlflow_uri(_config(tmp_path, "http://mine:5000")) == "http://mine:5000"
    assert mlflow_uri(_config(tmp_path, "off")) is None


def test_a_store_that_was_used_is_not_taken_for_one_of_the_environment(made: Path, tmp_path: Path) -> None:
    open_experiment(_config(made), str(mlflow_uri(_config(made))))
    assert mlflow_uri(_config(tmp_path)) == f"sqlite:///{tmp_path.resolve()}/mlflow.db"


def test_a_root_of_any_name_holds_its_database_and_nothing_lies_beside_it(made: Path) -> None:
    uri = str(mlflow_uri(_config(made)))
    assert database_file(uri) == made / "mlflow.db"
    assert (made / "mlflow.db").stat().st_size > 0
    assert [path.name for path in made.parent.iterdir()] == [ODD]
    run = start_run(_config(made), uri, RunLabels(name="odd"), None)
    end_run(uri, run.run_id, "KILLED")
    assert MlflowClient(tracking_uri=uri).get_run(run.run_id).info.status == "KILLED"


def test_prefects_database_of_such_a_root_is_named_as_sqlalchemy_reads_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "environ", {name: value for name, value in os.environ.items() if not name.startswith("PREFECT_")})

    process_environment(tmp_path / ODD)
    named = database_file(os.environ["PREFECT_API_DATABASE_CONNECTION_URL"])
    assert named == tmp_path / ODD / "prefect" / "prefect.db"


def test_store_that_cannot_be_reached_is_one_sentence(tmp_path: Path) -> None:
    uri = f"sqlite:///{tmp_path}/no/such/folder/mlflow.db"
    (tmp_path / "no").write_text("a file where a folder is wanted")
    with pytest.raises(ResourceError, match="set it to `off`") as raised:
        open_experiment(_config(tmp_path, uri), uri)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("how", ["text", "folder", "cut"])
def test_a_damaged_database_is_one_sentence_at_once(tmp_path: Path, how: str) -> None:
    _damaged(tmp_path / "mlflow.db", how)
    config = _config(tmp_path)
    started_s = time.monotonic()
    with pytest.raises(ResourceError, match=r"mlflow\.db") as raised:
        open_experiment(config, str(mlflow_uri(config)))
    assert "\n" not in str(raised.value)
    assert time.monotonic() - started_s < 20.0, "MLflow tries ten times, for 100 s"


def test_one_process_at_a_time_writes(tmp_path: Path) -> None:

    uri = str(mlflow_uri(_config(tmp_path)))
    order: list[str] = []
    waits = Event()

    def second() -> None:
        waits.set()
        with one_writer(uri):
            order.append("second")

    thread = Thread(target=second)
    with one_writer(uri):
        thread.start()
        assert waits.wait(10)
        thread.join(0.3)
        order.append("first")
    thread.join(10)
    assert order == ["first", "second"]


def _resumed(made: Path, run_dir: Path, run_id: str | None) -> str | None:
    write_journal(run_dir, Journal(next_step=2, mlflow_run_id=run_id, mlflow_uri="sqlite:////elsewhere/mlflow.db"))
    return check_tracker(_config(made), run_dir)


def test_a_run_that_mlflow_does_not_know_goes_on_in_a_new_one_and_says_so(made: Path, tmp_path: Path) -> None:
    news = _resumed(made, tmp_path, "0" * 32)
    assert news is not None
    assert f"does not know run {'0' * 32}" in news
    assert "goes on in a new MLflow run" in news
    assert (read_journal(tmp_path).mlflow_run_id, read_journal(tmp_path).next_step) == (None, 2)


def test_a_deleted_run_is_not_known(made: Path, tmp_path: Path) -> None:
    uri = str(mlflow_uri(_config(made)))
    run_id = start_run(_config(made), uri, RunLabels(name="kept"), None).run_id
    assert knows_run(uri, run_id)
    assert _resumed(made, tmp_path, run_id) is None
    MlflowClient(tracking_uri=uri).delete_run(run_id)
    assert "new MLflow run" in str(_resumed(made, tmp_path, run_id))


def test_the_page_of_past_runs_may_be_the_first_to_need_the_store(made: Path) -> None:
    make_store(str(mlflow_uri(_config(made))))


def test_params_are_the_flat_config() -> None:
    params = dict(flat_params(LibraConfig().model_dump(mode="json")))
    assert params["training.layout.tp"] == "1"
    assert all(len(value) <= 500 for value in params.values())
