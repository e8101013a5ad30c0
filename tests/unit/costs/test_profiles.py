import json
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from libra_core.costs.api import load_device, load_model
from libra_core.costs.profiles import CONFIGS
from libra_core.errors import ConfigError

QWEN3_4B = {
    "model_type": "qwen3",
    "num_hidden_layers": 36,
    "hidden_size": 2560,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "intermediate_size": 9728,
    "vocab_size": 151936,
    "tie_word_embeddings": True,
    "max_position_embeddings": 40960,
}


@pytest.mark.parametrize("file", sorted((CONFIGS / "hardware").glob("*.yaml")), ids=lambda file: file.stem)
def test_every_number_of_a_device_says_where_it_comes_from(file: Path) -> None:
    device = load_device(file)
    for item in device.provenance.values():
        assert item.grounding in ("measured", "derived", "datasheet")
        assert item.source
    assert {"gemm_bf16", "decode_attention", "prefill_attention", "all_reduce", "moe"} <= set(device.curves)


@pytest.mark.parametrize(
    ("name", "billions"),
    [
        ("qwen3_4b", 4.02),
        ("qwen3_14b", 14.77),
        ("qwen3_30b_a3b", 30.53),
        ("qwen2.5_3b", 3.09),
        ("qwen2.5_7b", 7.62),
        ("llama3_8b", 8.03),
        ("llama3_70b", 70.55),
    ],
)
def test_parameters_equal_the_model_cards(name: str, billions: float) -> None:
    assert load_model(name).num_parameters / 1e9 == pytest.approx(billions, rel=0.005)


def test_active_parameters_of_experts() -> None:
    assert load_model("qwen3_30b_a3b").active_parameters / 1e9 == pytest.approx(3.0, rel=0.05)


def test_a_config_json_gives_the_same_facts_as_the_named_model(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(QWEN3_4B))
    read, named = load_model(tmp_path), load_model("Qwen/Qwen3-4B")
    assert read.num_parameters == named.num_parameters
    assert read.kv_bytes_per_token == named.kv_bytes_per_token == 147_456
    assert load_model(tmp_path / "config.json") == read


def test_head_dim_comes_from_the_model_and_not_from_the_width() -> None:
    assert load_model("qwen3_4b").head_dim == load_model("qwen3_30b_a3b").head_dim == 128
    values = {key: value for key, value in QWEN3_4B.items() if key != "head_dim"}
    from libra_core.costs.api import model_from_hf

    assert model_from_hf(values, name="x").head_dim == 128
    assert model_from_hf({**values, "model_type": "llama"}, name="x").head_dim == 80


def test_a800_is_a100_with_slower_links_and_says_so() -> None:
    a100, a800 = load_device("a100"), load_device("a800")
    assert (a100.grounding, a800.grounding) == ("measured", "derived")
    assert a800.intra.bytes_per_s == pytest.approx(a100.intra.bytes_per_s * 2 / 3)
    assert a800.curves == a100.curves
    assert "1.5 times as long" in a800.provenance["all_reduce"].source


@pytest.mark.parametrize("name", ["b200", "nowhere/x.yaml"])
def test_an_unknown_device_names_the_known_ones(name: str) -> None:
    with pytest.raises(ConfigError, match="a100_sxm_80, a800_sxm_80"):
        load_device(name)


def test_a_number_without_a_source_is_refused(tmp_path: Path) -> None:
    values = yaml.safe_load((CONFIGS / "hardware" / "a800_sxm_80.yaml").read_text())
    values["values"]["intra_bytes_per_s"] = {"value": 1e9}
    file = tmp_path / "mine.yaml"
    file.write_text(yaml.safe_dump(values))
    with pytest.raises(ConfigError, match="intra_bytes_per_s needs grounding"):
        load_device(file)


def test_a_config_json_without_heads_is_refused(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "qwen3"}))
    with pytest.raises(ConfigError, match="num_attention_heads"):
        load_model(tmp_path)


def test_the_evaluator_starts_without_heavy_libraries() -> None:
    heavy = "torch,ray,pandas,scipy,pyarrow,vllm,pydantic"
    code = f"import sys, libra_core.costs.api; print([name for name in '{heavy}'.split(',') if name in sys.modules])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip() == "[]"
