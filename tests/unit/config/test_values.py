"""What a value in YAML or in `--set` means, and which are refused."""

import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, ValidationError

from libra_core.config import LibraConfig, load_config
from libra_core.config.base import sections_of
from libra_core.config.loading import apply_override, process_environment, validate_config
from libra_core.errors import ConfigError
from libra_core.simulation.study.config import StudyConfig, load_study
from libra_core.yaml_text import parse_yaml

ROOT = Path(__file__).parents[3]


def _write(folder: Path, text: str) -> Path:
    path = folder / "a.yaml"
    path.write_text(text, encoding="utf-8")
    return path


def _numbers(model: type[BaseModel], prefix: tuple[str, ...] = ()) -> list[tuple[tuple[str, ...], Any]]:
    """Every key that holds one number, of every kind of every section."""
    found: list[tuple[tuple[str, ...], Any]] = []
    for name, info in model.model_fields.items():
        kinds = {int, float} & {info.annotation, *getattr(info.annotation, "__args__", ())}
        if kinds:
            found.append(((*prefix, name), model))
        for section in sections_of(info.annotation):
            found += _numbers(section, (*prefix, name))
    return found


NUMBERS = [(".".join(keys), keys[-1], model) for keys, model in _numbers(LibraConfig)]


def test_there_are_numbers_to_look_at() -> None:
    assert len(NUMBERS) > 120


@pytest.mark.parametrize("value", [float("inf"), float("-inf"), float("nan"), 10**30, 1e300, True, "10", "010"], ids=repr)
def test_no_number_of_a_configuration_takes_what_is_none_or_has_no_bound(value: Any) -> None:
    assert [path for path, key, model in NUMBERS if not _refuses(model, key, value)] == []


def _refuses(model: type[BaseModel], key: str, value: Any) -> bool:
    try:
        model.model_validate({key: value})
    except ValidationError as error:
        return any(detail["loc"][:1] == (key,) for detail in error.errors())
    return False


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("seed: 010", r"seed = '010': this is no number in plain digits"),
        ("seed: 1:30", r"seed = '1:30': this is no number"),
        ("seed: true", r"seed = True: this is no number"),
        ("seed: '7'", r"seed = '7': this is no number"),
        ("seed: 18446744073709551616", r"seed = 18446744073709551616: input should be less than or equal to 9223372036854775807"),
        ("rollout: {temperature: .inf}", r"\.inf is not a finite number"),
        ("rollout: {turn_deadline_s: .nan}", r"\.nan is not a finite number"),
        ("rollout: {turn_deadline_s: 1e999}", r"1e999 is not a finite number"),
        ("rollout: {turn_deadline_s: 1e9}", r"rollout\.turn_deadline_s = 1000000000\.0: input should be at most 31,622,400"),
        ("training: {steps: 3000000000}", r"training\.steps = 3000000000: input should be at most 2,147,483,647"),
        ("training: {streamed: 1}", r"training\.streamed = 1: input should be true or false"),
        ("routing: {limits_tokens: ['10']}", r"routing\.limits_tokens = \['10'\]: this is no number"),
        ("run: {name: 5}", r"run\.name = 5: input should be a valid string; write it in quotes"),
        ("rollout: {temperature: 0.005}", r"rollout\.temperature = 0\.005: input should be greater than or equal to 0\.01"),
        ("rollout: {temperature: 2.5}", r"rollout\.temperature = 2\.5: input should be less than or equal to 2"),
    ],
)
def test_a_value_that_is_not_what_it_looks_like_is_refused(tmp_path: Path, text: str, sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        load_config(_write(tmp_path, text))


@pytest.mark.parametrize("text", ["seed: 1\nrun: {name: a}\nseed: 2\n", "run:\n  name: a\nseed: 1\nrun:\n  root: b\n"])
def test_a_key_that_stands_twice_is_refused_with_both_lines(tmp_path: Path, text: str) -> None:
    lines = [number for number, line in enumerate(text.splitlines(), 1) if line.startswith(("seed: 1", "seed: 2", "run:"))]
    twice = "seed" if text.startswith("seed") else "run"
    first, second = (lines[0], lines[-1])
    with pytest.raises(ConfigError, match=f"'{twice}' stands on line {first} and again on line {second}; keep one"):
        load_config(_write(tmp_path, text))


def test_a_key_twice_in_a_study_or_in_one_set_is_refused_too(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="'name' stands on line 1 and again on line 2"):
        load_study(_write(tmp_path, "name: a\nname: b\n"))
    with pytest.raises(ConfigError, match="'tp' stands on line 1 and again on line 1"):
        load_config(_write(tmp_path, ""), ["rollout.engines=[{tp: 1, tp: 2}]"])


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1e-5", 1e-5),
        ("1_000", 1000),
        ("0x10", 16),
        ("010", "010"),
        ("1:30", "1:30"),
        ("off", "off"),
        ("2026-01-01", "2026-01-01"),
        ("true", True),
        ("~", None),
        ("", None),
    ],
)
def test_plain_yaml_means_what_it_looks_like(text: str, value: Any) -> None:
    assert parse_yaml(text) == value
    assert type(parse_yaml(text)) is type(value)


@pytest.mark.parametrize("word", ["on", "yes", "true"])
def test_words_for_true_are_taken_where_true_or_false_is_asked(tmp_path: Path, word: str) -> None:
    assert load_config(_write(tmp_path, f"training: {{streamed: {word}}}")).training.streamed is True


@pytest.mark.parametrize(
    "text", ["/data/job #12", "/data/a: b", "010", "1:30", "true", "[x", "{a", "50%25 a?b #1", "- x", "*a", "@b"]
)
def test_text_of_set_is_taken_whole(tmp_path: Path, text: str) -> None:
    config = load_config(_write(tmp_path, ""), [f"run.root={text}", f"tracking.baseline={text}"])
    assert config.run.root == text
    assert config.tracking.baseline == text


@given(st.text(alphabet=st.characters(blacklist_categories=("Cs", "Cc")), min_size=1).filter(lambda text: text[0] not in "'\""))
def test_any_text_of_set_arrives_unchanged(text: str) -> None:
    values: dict[str, Any] = {}
    apply_override(values, f"tracking.baseline={text}", LibraConfig)
    assert validate_config(values).tracking.baseline == text


def test_text_of_set_may_stand_in_quotes_and_be_unset(tmp_path: Path) -> None:
    config = load_config(
        _write(tmp_path, "run: {resume: old}"), ['run.root="a #1"', "run.resume=null", "tracking.mlflow_uri=off"]
    )
    assert (config.run.root, config.run.resume, config.tracking.mlflow_uri) == ("a #1", None, "off")


def test_a_damaged_list_in_set_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"--set rollout\.engines: '\[\{tp: 1' is not valid YAML") as raised:
        load_config(_write(tmp_path, ""), ["rollout.engines=[{tp: 1"])
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("name", ["a/b", "..", ".", "", " a", "x" * 300, "ü" * 101, "a\nb", "a\\b", "../../etc", "a\0"])
@pytest.mark.parametrize("key", ["run", "tracking"])
def test_a_name_that_cannot_be_a_folder_is_refused(key: str, name: str) -> None:
    field = {"run": "name", "tracking": "experiment"}[key]
    with pytest.raises(ConfigError, match="folder"):
        validate_config({key: {field: name}})


def test_a_study_whose_name_cannot_be_a_folder_is_refused() -> None:
    with pytest.raises(ConfigError, match="cannot name a folder"):
        load_study(ROOT / "configs" / "study" / "48gpu.yaml", ["name=../x"])


def test_an_experiment_of_a_server_may_have_slashes() -> None:
    tracking = {"experiment": "/Users/me/x", "mlflow_uri": "http://127.0.0.1:5000"}
    assert validate_config({"tracking": tracking}).tracking.experiment == "/Users/me/x"


@pytest.mark.parametrize(
    ("model", "backend", "tolerance"),
    [("float32", "cpu", 1e-3), ("float32", "gpu", 2e-2), ("bfloat16", "cpu", 0.3), ("bfloat16", "gpu", 0.3)],
)
def test_the_canary_s_tolerance_follows_dtype_and_backend(model: str, backend: str, tolerance: float) -> None:
    assert validate_config({"model": {"dtype": model}, "backend": {"kind": backend}}).canary_tolerance == tolerance
    assert validate_config({"model": {"dtype": model}, "publication": {"canary_tolerance": 0.5}}).canary_tolerance == 0.5


@pytest.mark.parametrize("value", [float("inf"), 1e300, True, "10"], ids=repr)
def test_no_number_of_a_study_takes_what_is_none_or_has_no_bound(value: Any) -> None:
    assert [keys for keys, model in _numbers(StudyConfig) if not _refuses(model, keys[-1], value)] == []


@pytest.mark.parametrize(("encoding", "says"), [("utf-16-le", "holds zero bytes, as UTF-16 does"), ("utf-16", "is not text")])
def test_a_file_in_utf_16_says_how_to_save_it(tmp_path: Path, encoding: str, says: str) -> None:
    path = tmp_path / "a.yaml"
    path.write_bytes("seed: 1\n".encode(encoding))
    with pytest.raises(ConfigError, match=rf"cannot read the config file .*a\.yaml: .*{says}.*; save it as UTF-8"):
        load_config(path)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("run: &r {name: *r}\n", r"an alias \(\*name\) stands inside the value that it names"),
        ("run: &r [[*r]]\n", r"an alias \(\*name\) stands inside the value that it names"),
        ("training:\n\tsteps: 3\n", "indent with spaces, not with tabs, on line 2"),
        ("extends: none.yaml\n", r"no config file at .*none\.yaml, which .*a\.yaml extends; examples lie in"),
        ("1: 2\n", "the key 1 of the configuration is no text; keys are names"),
        ("training: {1: 2}\n", "the key 1 of training is no text; keys are names"),
        ("run: {name: a/b}\n", "run.name: 'a/b' cannot name a folder"),
    ],
)
def test_an_odd_file_is_one_sentence(tmp_path: Path, text: str, says: str) -> None:
    (tmp_path / "a.yaml").write_text(text)
    with pytest.raises(ConfigError, match=says):
        load_config(tmp_path / "a.yaml")


def test_an_alias_may_be_used_often_but_not_stand_for_billions(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text("training: &t {steps: 3}\nrollout: {<<: {group_size: 4}}\nseed: 1\n")
    assert load_config(tmp_path / "a.yaml").training.steps == 3
    levels = "".join(f"a{level}: &a{level} [{', '.join([f'*a{level - 1}'] * 9)}]\n" for level in range(1, 30))
    (tmp_path / "a.yaml").write_text(f"a0: &a0 [x]\n{levels}run: {{name: *a29}}\n")
    with pytest.raises(ConfigError, match=r"its aliases \(\*name\) stand for more than 1,000,000 values"):
        load_config(tmp_path / "a.yaml")


def test_a_section_whose_keys_are_commented_out_changes_nothing(tmp_path: Path) -> None:
    (tmp_path / "base.yaml").write_text("training: {steps: 3, optimizer: {learning_rate: 0.5}}\n")
    (tmp_path / "a.yaml").write_text("extends: base.yaml\nrollout:\ntraining:\n  optimizer:\n    # learning_rate: 1.0\n")
    config = load_config(tmp_path / "a.yaml")
    assert (config.training.steps, config.training.optimizer.learning_rate) == (3, 0.5)


def test_a_private_server_leaves_its_refusals_to_who_asked_unless_it_is_told_otherwise(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for asked, level in ((None, "CRITICAL"), ("ERROR", "ERROR")):
        monkeypatch.setattr(os, "environ", {} if asked is None else {"PREFECT_LOGGING_SERVER_LEVEL": asked})
        process_environment(tmp_path, quiet=True)
        assert os.environ["PREFECT_LOGGING_SERVER_LEVEL"] == level
    monkeypatch.setattr(os, "environ", {})
    process_environment(tmp_path)
    assert "PREFECT_LOGGING_SERVER_LEVEL" not in os.environ
