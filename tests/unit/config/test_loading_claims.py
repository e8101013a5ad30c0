import subprocess
import sys
from pathlib import Path

import pytest

from libra_core.config import load_config, resolved_yaml
from libra_core.config.reference import configuration_markdown
from libra_core.errors import ConfigError

ROOT = Path(__file__).parents[3]


def _write(folder: Path, name: str, text: str) -> Path:
    path = folder / name
    path.write_text(text)
    return path


def test_unknown_key_is_refused_with_its_nearest_name(tmp_path: Path) -> None:
    path = _write(tmp_path, "a.yaml", "training:\n  stepz: 3\n")
    with pytest.raises(ConfigError, match=r"unknown key training\.stepz; did you mean training\.steps\?"):
        load_config(path)


def test_key_in_the_wrong_section_is_found_elsewhere(tmp_path: Path) -> None:
    path = _write(tmp_path, "a.yaml", "training:\n  staleness: 3\n")
    with pytest.raises(ConfigError, match=r"did you mean rollout\.staleness\?"):
        load_config(path)


def test_extends_takes_the_other_file_first(tmp_path: Path) -> None:
    _write(tmp_path, "base.yaml", "seed: 1\ntraining: {steps: 7, micro_batch_tokens: 64}\n")
    config = load_config(_write(tmp_path, "a.yaml", "extends: base.yaml\ntraining: {steps: 9}\n"))
    assert (config.seed, config.training.steps, config.training.micro_batch_tokens) == (1, 9, 64)


def test_loop_in_extends_is_refused(tmp_path: Path) -> None:
    _write(tmp_path, "b.yaml", "extends: a.yaml\n")
    with pytest.raises(ConfigError, match="leads back to itself"):
        load_config(_write(tmp_path, "a.yaml", "extends: b.yaml\n"))


def test_set_overrides_a_nested_value(tmp_path: Path) -> None:
    config = load_config(_write(tmp_path, "a.yaml", "seed: 1\n"), ["training.steps=3", "rollout.engines=[{tp: 2, count: 1}]"])
    assert config.training.steps == 3
    assert config.rollout.engines[0].tp == 2


@pytest.mark.parametrize(
    ("text", "connector"),
    [("{}", None), ("{rollout: {kv_transfer: off}}", None), ("{rollout: {kv_transfer: shared_folder}}", "shared_folder")],
)
def test_a_kv_connector_is_off_by_default_and_named_in_one_word(tmp_path: Path, text: str, connector: str | None) -> None:
    config = load_config(_write(tmp_path, "a.yaml", text))
    assert config.rollout.kv_transfer.connector == connector
    assert load_config(_write(tmp_path, "again.yaml", resolved_yaml(config))) == config


def test_options_of_a_kv_connector_go_to_vllms_own_alone(tmp_path: Path) -> None:
    text = "rollout: {{kv_transfer: {{connector: {}, options: {{backends: [UCX]}}}}}}"
    config = load_config(_write(tmp_path, "a.yaml", text.format("NixlConnector")))
    assert config.rollout.kv_transfer.options == {"backends": ["UCX"]}
    with pytest.raises(ConfigError, match="the connector is shared_folder; name one, or leave them out"):
        load_config(_write(tmp_path, "b.yaml", text.format("shared_folder")))


def test_a_kv_connector_that_may_mix_policy_versions_needs_somebody_who_vouches_for_it(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="ExampleConnector is not known to keep the KV of policy versions apart"):
        load_config(_write(tmp_path, "a.yaml", "rollout: {kv_transfer: ExampleConnector}"))
    own = load_config(_write(tmp_path, "b.yaml", "rollout: {kv_transfer: {connector: Mine, module: my.kv}}"))
    assert own.rollout.kv_transfer.module == "my.kv"


@pytest.mark.parametrize("override", ["training.steps", "=3", ""])
def test_set_without_key_and_value_is_refused(tmp_path: Path, override: str) -> None:
    with pytest.raises(ConfigError, match="--set needs key=value"):
        load_config(_write(tmp_path, "a.yaml", ""), [override])


@pytest.mark.parametrize(("text", "sentence"), [("a: [", "is not valid YAML"), ("- 1\n", "must hold a mapping")])
def test_bad_yaml_is_one_sentence(tmp_path: Path, text: str, sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence) as raised:
        load_config(_write(tmp_path, "a.yaml", text))
    assert "\n" not in str(raised.value)


def test_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"no config file at .*none\.yaml"):
        load_config(tmp_path / "none.yaml")


def test_tp_that_does_not_divide_the_heads_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="tp 3 does not divide the 4 heads"):
        load_config(_write(tmp_path, "a.yaml", ""), ["training.layout.tp=3"])


def test_more_ranks_than_trajectories_are_refused(tmp_path: Path) -> None:
    few = ["rollout.groups_per_step=4", "rollout.group_size=2"]
    with pytest.raises(ConfigError, match=r"a step has 8 trajectories .* training\.layout\.dp = 9 replicas without work"):
        load_config(_write(tmp_path, "a.yaml", ""), ["training.layout.dp=9", *few])
    assert load_config(_write(tmp_path, "b.yaml", ""), ["training.layout.dp=3", *few]).training.layout.dp == 3


def test_bad_value_says_which_and_why(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"training\.steps = 0: input should be greater than or equal to 1"):
        load_config(_write(tmp_path, "a.yaml", ""), ["training.steps=0"])


def test_resolved_config_reads_back_the_same(tmp_path: Path) -> None:
    config = load_config(_write(tmp_path, "a.yaml", "seed: 4\n"))
    assert load_config(_write(tmp_path, "b.yaml", resolved_yaml(config))) == config


def test_kind_chooses_the_section_and_search_r1_is_the_default(tmp_path: Path) -> None:
    path = _write(tmp_path, "a.yaml", "workload: {heldout_prompts: 3}\n")
    assert load_config(path).workload.kind == "search_r1"
    chosen = load_config(_write(tmp_path, "b.yaml", ""), ["workload.kind=synthetic", "workload.turns=4"])
    assert chosen.workload.kind == "synthetic"
    assert load_config(_write(tmp_path, "c.yaml", resolved_yaml(chosen))) == chosen


@pytest.mark.parametrize(
    ("override", "sentence"),
    [
        ("workload.turnz=4", r"unknown key workload\.turnz \(of kind synthetic\); did you mean workload\.turns\?"),
        ("workload.two_hop_share=0.5", r"unknown key workload\.two_hop_share \(of kind synthetic\)"),
        ("workload.turns=0", r"workload\.turns = 0: input should be greater"),
        (
            "workload.kind=chess",
            r"workload\.kind = 'chess': input should be one of 'search_r1', 'r2e_gym', 'dapo_math', 'synthetic'",
        ),
    ],
)
def test_mistakes_in_a_section_of_several_kinds_name_the_key_as_it_was_written(
    tmp_path: Path, override: str, sentence: str
) -> None:
    with pytest.raises(ConfigError, match=sentence):
        load_config(_write(tmp_path, "a.yaml", ""), ["workload.kind=synthetic", override])


@pytest.mark.parametrize("override", ["workload.reward=f1", "workload.corpus=passages.jsonl", "workload.format_reward=0.1"])
def test_keys_that_built_in_questions_do_not_use_are_refused(tmp_path: Path, override: str) -> None:
    key = override.split("=")[0].replace(".", r"\.")
    with pytest.raises(ConfigError, match=rf"{key} = .* has no effect without workload\.train_files"):
        load_config(_write(tmp_path, "a.yaml", ""), [override])


def test_every_example_loads() -> None:
    examples = sorted((ROOT / "configs" / "experiment").glob("*.yaml"))
    assert examples
    for path in examples:
        load_config(path)


@pytest.mark.parametrize(
    ("overrides", "sentence"),
    [
        (["kind=dapo_math", "train_files=[a]", "heldout_prompts=5"], "heldout_prompts = 5 needs workload.heldout_files"),
        (["train_files=[a]", "corpus=c", "heldout_prompts=5"], "heldout_prompts = 5 needs workload.heldout_files"),
        (["kind=r2e_gym", "train_files=[a]", "heldout_files=[b]"], "heldout_prompts = 0 scores none of them"),
        (["kind=r2e_gym", "heldout_files=[b]"], "no effect without workload.train_files"),
        (["heldout_share=0", "heldout_prompts=5"], "heldout_share = 0 holds none out"),
    ],
)
def test_an_evaluation_of_nothing_is_refused(tmp_path: Path, overrides: list[str], sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        load_config(_write(tmp_path, "a.yaml", ""), [f"workload.{override}" for override in overrides])


@pytest.mark.parametrize(
    ("overrides", "prompts"),
    [
        (["train_files=[a]", "corpus=c"], 0),
        (["train_files=[a]", "corpus=c", "heldout_files=[b]"], 64),
        (["heldout_files=[]"], 64),
    ],
)
def test_what_is_not_held_out_is_not_scored_by_default(tmp_path: Path, overrides: list[str], prompts: int) -> None:
    config = load_config(_write(tmp_path, "a.yaml", ""), [f"workload.{override}" for override in overrides])
    assert config.workload.heldout_prompts == prompts
    assert load_config(_write(tmp_path, "b.yaml", resolved_yaml(config))) == config


def test_configuration_page_is_up_to_date() -> None:
    assert (ROOT / "docs" / "configuration.md").read_text() == configuration_markdown(), "run `make docs`"


def test_import_is_light() -> None:
    code = (
        "import time; start = time.process_time(); import libra_core.config; import sys; "
        "heavy = {'torch', 'ray', 'vllm', 'prefect', 'mlflow', 'megatron', 'pandas'} & set(sys.modules); "
        "print(time.process_time() - start, *sorted(heavy))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    seconds, *heavy = done.stdout.split()
    assert heavy == []
    assert float(seconds) < 0.5
