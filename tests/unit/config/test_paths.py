"""Whose folder a path of a configuration starts from."""

import shutil
from pathlib import Path

import pytest

from libra_core.config import load_config, resolved_yaml
from libra_core.config.paths import read_paths
from libra_core.errors import ConfigError
from libra_core.shipped import CONFIGS
from libra_core.simulation.study.config import load_study

FILES = {
    "model.path": "model",
    "workload.corpus": "data/passages.jsonl",
    "planner.history": "data/history.jsonl",
    "planner.profile": "profile.yaml",
    "simulation.history": "data/history.jsonl",
    "simulation.truth": "truth.yaml",
    "simulation.workload": "law.yaml",
    "planner.device": "device.yaml",
    "planner.model": "config.json",
}


def _config(folder: Path, *, prefix: str = "") -> Path:
    folder.mkdir(parents=True)
    sections: dict[str, list[str]] = {}
    for key, value in FILES.items():
        section, leaf = key.split(".")
        sections.setdefault(section, []).append(f"  {leaf}: {prefix}{value}")
    sections["workload"].append(f"  train_files: ['{prefix}a.jsonl', '{prefix}b.jsonl']")
    text = "".join(f"{section}:\n" + "\n".join(lines) + "\n" for section, lines in sections.items())
    path = folder / "run.yaml"
    path.write_text(text, encoding="utf-8")
    return path


def test_what_is_read_starts_from_the_file_that_names_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = _config(tmp_path / "elsewhere")
    monkeypatch.chdir(tmp_path)
    found = read_paths(load_config(Path("elsewhere/run.yaml")))
    assert {key: found[key][0] for key in FILES} == {key: str(file.parent / value) for key, value in FILES.items()}
    assert found["workload.train_files"] == (str(file.parent / "a.jsonl"), str(file.parent / "b.jsonl"))


def test_each_file_of_an_extends_chain_names_its_own(tmp_path: Path) -> None:
    base = _config(tmp_path / "base")
    (tmp_path / "run.yaml").write_text("extends: base/run.yaml\nplanner: {history: own.jsonl}\n")
    config = load_config(tmp_path / "run.yaml")
    assert config.planner.history == str(tmp_path / "own.jsonl")
    assert config.simulation.history == str(base.parent / "data/history.jsonl")


def test_paths_of_set_start_from_the_working_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = _config(tmp_path / "elsewhere")
    monkeypatch.chdir(tmp_path)
    config = load_config(file, ["model.path=here", "simulation={truth: t.yaml}", "workload.train_files=[c.jsonl]"])
    assert config.model.path == str(tmp_path / "here")
    assert config.simulation.truth == str(tmp_path / "t.yaml")
    assert read_paths(config)["workload.train_files"] == (str(tmp_path / "c.jsonl"),)


def test_what_is_written_starts_from_the_working_directory(tmp_path: Path) -> None:
    file = tmp_path / "run.yaml"
    file.write_text("run: {root: out, resume: out/run-1}\nworkload: {kind: r2e_gym, prepared: out/tasks}\n")
    config = load_config(file)
    assert (config.run.root, config.run.resume) == ("out", "out/run-1")
    assert config.workload.kind == "r2e_gym"
    assert config.workload.prepared == "out/tasks"


@pytest.mark.parametrize("text", ["~/a", "$HOME/a", "${HOME}/a"])
def test_home_and_variables_are_filled_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    file = _config(tmp_path / "elsewhere", prefix=text.removesuffix("a"))
    found = read_paths(load_config(file, [f"run.root={text}"]))
    assert {path for paths in found.values() for path in paths} >= {str(tmp_path / "home" / value) for value in FILES.values()}
    assert load_config(file, [f"run.root={text}"]).run.root == str(tmp_path / "home" / "a")


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("$NO_SUCH_VARIABLE/a", "the environment has no NO_SUCH_VARIABLE"),
        ("${}/a", "the environment has no such name"),
        ("~no_such_user/a", "no home folder of '~no_such_user'"),
        ("", "is no path"),
        ("a\0b", "is no path"),
        ("a\nb", "holds a line's end or another control character"),
    ],
)
def test_a_path_that_cannot_be_filled_in_is_refused(tmp_path: Path, text: str, sentence: str) -> None:
    (tmp_path / "a.yaml").write_text("")
    with pytest.raises(ConfigError, match=rf"run\.root = .*{sentence}"):
        load_config(tmp_path / "a.yaml", [f"run.root={text}"])


def test_a_dollar_that_names_nothing_stays(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text("")
    assert load_config(tmp_path / "a.yaml", ["run.root=/data/5$ a"]).run.root == "/data/5$ a"


def test_shipped_configurations_load_the_same_from_any_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for file in sorted((CONFIGS / "experiment").glob("*.yaml")):
        monkeypatch.chdir(CONFIGS.parent)
        at_home = load_config(file)
        monkeypatch.chdir(tmp_path)
        assert load_config(file) == at_home
        assert load_config(f"configs/experiment/{file.name}") == at_home
        assert load_config(file.stem) == at_home


def test_a_copy_of_a_shipped_configuration_finds_the_shipped_tables(tmp_path: Path) -> None:
    copy = Path(shutil.copy(CONFIGS / "experiment" / "simulated_48gpu.yaml", tmp_path))
    copy.write_text(copy.read_text() + "  truth: configs/study/truth/qwen3_14b_a800.yaml\n")
    simulation = load_config(copy).simulation
    assert Path(simulation.truth) == CONFIGS / "study/truth/qwen3_14b_a800.yaml"
    assert Path(simulation.workload) == CONFIGS / "study/workloads/search_r1.yaml"


def test_the_resolved_configuration_reads_back_the_same_elsewhere(tmp_path: Path) -> None:
    config = load_config(_config(tmp_path / "elsewhere"))
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "config.yaml").write_text(resolved_yaml(config))
    assert load_config(tmp_path / "other" / "config.yaml") == config


def test_paths_of_a_study_start_from_its_file_and_those_of_set_from_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copytree(CONFIGS / "study", tmp_path / "study")
    monkeypatch.chdir(tmp_path)
    study = load_study("study/48gpu.yaml", ["history=h.jsonl"])
    assert study.truth == str(tmp_path / "study" / "truth" / "qwen3_14b_a800.yaml")
    assert study.history == str(tmp_path / "h.jsonl")
    assert load_study("48gpu", ["workloads=[r2e_gym]"]).workloads == (str(CONFIGS / "study" / "workloads" / "r2e_gym.yaml"),)
