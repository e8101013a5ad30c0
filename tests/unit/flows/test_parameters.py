from pathlib import Path

import pytest
from pydantic import ValidationError

from flows.parameters import TrainParameters
from flows.training import checkpoint_due, train
from libra_core.errors import ConfigError


def _config(folder: Path) -> str:
    path = folder / "a.yaml"
    path.write_text("training: {steps: 9}\n")
    return str(path)


def test_parameters_become_a_config(tmp_path: Path) -> None:
    config = TrainParameters(config=_config(tmp_path), overrides=["seed=2"], resume="runs/x: y").load()
    assert (config.training.steps, config.seed, config.run.resume) == (9, 2, "runs/x: y")


def test_bad_override_is_a_config_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="unknown key"):
        TrainParameters(config=_config(tmp_path), overrides=["nothing=2"]).load()


def test_unknown_parameter_is_refused() -> None:
    with pytest.raises(ValidationError):
        TrainParameters.model_validate({"cfg": "a.yaml"})


def test_the_deployment_takes_the_model() -> None:
    schema = train.parameters.model_dump()
    assert set(schema["properties"]) == {"parameters"}
    assert "TrainParameters" in schema["definitions"]


@pytest.mark.parametrize(
    ("finished", "every", "due"), [(10, 10, True), (9, 10, False), (40, 0, True), (10, 0, False), (40, 7, True)]
)
def test_checkpoints_are_due(finished: int, every: int, due: bool) -> None:
    assert checkpoint_due(finished, 40, every) is due
