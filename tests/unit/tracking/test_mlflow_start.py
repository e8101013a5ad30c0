from pathlib import Path

import pytest

from libra_core.config import LibraConfig
from libra_core.errors import ResourceError
from libra_core.tracking.mlflow_tracker import flat_params, mlflow_uri, open_experiment


def _config(root: Path, uri: object = None) -> LibraConfig:
    return LibraConfig.model_validate({"run": {"root": str(root)}, "tracking": {"mlflow_uri": uri}})


def test_default_store_lies_under_the_run_root(tmp_path: Path) -> None:
    assert mlflow_uri(_config(tmp_path)) == f"sqlite:///{tmp_path.resolve()}/mlflow.db"


@pytest.mark.parametrize("word", ["off", False])
def test_off_means_no_store_also_as_yaml_reads_it(tmp_path: Path, word: object) -> None:
    assert mlflow_uri(_config(tmp_path, word)) is None


def test_store_that_cannot_be_reached_is_one_sentence(tmp_path: Path) -> None:
    uri = f"sqlite:///{tmp_path}/no/such/folder/mlflow.db"
    (tmp_path / "no").write_text("a file where a folder is wanted")
    with pytest.raises(ResourceError, match="set it to `off`") as raised:
        open_experiment(_config(tmp_path, uri), uri)
    assert "\n" not in str(raised.value)


def test_params_are_the_flat_config() -> None:
    params = dict(flat_params(LibraConfig().model_dump(mode="json")))
    assert params["training.layout.tp"] == "1"
    assert all(len(value) <= 500 for value in params.values())
