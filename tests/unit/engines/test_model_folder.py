import json
from pathlib import Path
from typing import Any

import pytest

from libra_core.config.training import LayoutConfig
from libra_core.engines.hf_layout import hf_tensors
from libra_core.engines.model_folder import check_model_folder, read_model_facts
from libra_core.errors import ConfigError, LibraError, ModelFolderError

QWEN3 = {
    "model_type": "qwen3",
    "num_hidden_layers": 4,
    "hidden_size": 128,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 48,
    "intermediate_size": 256,
    "vocab_size": 512,
    "max_position_embeddings": 512,
    "tie_word_embeddings": True,
    "rope_parameters": {"rope_theta": 1e6, "rope_type": "default"},
    "hidden_act": "silu",
}
ONE = LayoutConfig()


def safetensors_bytes(**shapes: int) -> bytes:
    """A file of float32 vectors."""
    header: dict[str, Any] = {}
    end = 0
    for name, size in shapes.items():
        header[name] = {"dtype": "F32", "shape": [size], "data_offsets": [end, end + 4 * size]}
        end += 4 * size
    encoded = json.dumps(header).encode()
    return len(encoded).to_bytes(8, "little") + encoded + bytes(end)


def folder(path: Path, **changes: Any) -> Path:
    (path / "config.json").write_text(json.dumps({**QWEN3, **changes}))
    (path / "tokenizer.json").write_text("{}")
    (path / "model.safetensors").write_bytes(safetensors_bytes(a=3, b=2))
    return path


def sentence(path: Path, layout: LayoutConfig = ONE, **options: Any) -> str:
    with pytest.raises(LibraError) as raised:
        check_model_folder(path, layout=layout, **options)
    return str(raised.value)


def test_a_complete_folder_gives_its_facts(tmp_path: Path) -> None:
    facts = check_model_folder(folder(tmp_path), layout=LayoutConfig(tp=2, pp=2), engine_degrees=(1, 2))
    assert (facts.num_heads, facts.num_kv_heads, facts.head_dim, facts.rope_theta) == (4, 2, 48, 1e6)
    assert facts.tied_embeddings
    assert facts.qk_norm
    assert not facts.qkv_bias


def test_older_configs_hold_rope_theta_at_the_top(tmp_path: Path) -> None:
    assert read_model_facts(folder(tmp_path, rope_parameters=None, rope_theta=5e5)).rope_theta == 5e5


def test_head_dim_defaults_by_family(tmp_path: Path) -> None:
    assert read_model_facts(folder(tmp_path, head_dim=None)).head_dim == 128
    assert read_model_facts(folder(tmp_path, head_dim=None, model_type="qwen2")).head_dim == 32


def test_a_missing_folder_is_named(tmp_path: Path) -> None:
    assert "nowhere does not exist; set model.path" in sentence(tmp_path / "nowhere")


@pytest.mark.parametrize(
    ("missing", "expected"),
    [
        ("config.json", "has no config.json"),
        ("tokenizer.json", "has no tokenizer"),
        ("model.safetensors", "has no weights"),
    ],
)
def test_a_missing_file_is_named(tmp_path: Path, missing: str, expected: str) -> None:
    (folder(tmp_path) / missing).unlink()
    assert expected in sentence(tmp_path)


def test_a_broken_config_is_one_sentence(tmp_path: Path) -> None:
    (folder(tmp_path) / "config.json").write_text("{")
    assert "not readable JSON" in sentence(tmp_path)


def test_an_incomplete_config_names_the_key(tmp_path: Path) -> None:
    config = {key: value for key, value in QWEN3.items() if key != "hidden_size"}
    (folder(tmp_path) / "config.json").write_text(json.dumps(config))
    assert "hidden_size" in sentence(tmp_path)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"model_type": "mixtral"}, "model_type is 'mixtral', but Libra trains qwen3, qwen2, llama"),
        ({"hidden_act": "gelu"}, "hidden_act is 'gelu'"),
        ({"attention_bias": True}, "attention_bias is True"),
        ({"use_sliding_window": True}, "use_sliding_window is True"),
        ({"rope_parameters": {"rope_theta": 1e6, "rope_type": "yarn"}}, "rope_type is 'yarn'"),
        ({"rope_parameters": None, "rope_scaling": {"type": "linear"}}, "rope_type is 'linear'"),
    ],
)
def test_a_model_that_would_be_trained_wrongly_is_refused(tmp_path: Path, changes: dict[str, Any], expected: str) -> None:
    assert expected in sentence(folder(tmp_path, **changes))


def test_a_weight_file_that_is_cut_short_is_refused(tmp_path: Path) -> None:
    file = folder(tmp_path) / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-1])
    assert "cut short" in sentence(tmp_path)


def test_a_weight_file_of_rubbish_is_refused(tmp_path: Path) -> None:
    (folder(tmp_path) / "model.safetensors").write_bytes(b"not a tensor in sight, only text")
    assert "damaged" in sentence(tmp_path)


def test_a_missing_shard_is_named(tmp_path: Path) -> None:
    index = {"weight_map": {"a": "part-1.safetensors", "b": "part-2.safetensors"}}
    (folder(tmp_path) / "model.safetensors.index.json").write_text(json.dumps(index))
    (tmp_path / "part-1.safetensors").write_bytes(safetensors_bytes(a=1))
    assert "part-2.safetensors" in sentence(tmp_path)


@pytest.mark.parametrize(
    ("layout", "expected"),
    [
        (LayoutConfig(tp=4), "training.layout.tp = 4 does not divide the model's 2 key-value heads"),
        (LayoutConfig(tp=3), "training.layout.tp = 3 does not divide the model's 4 attention heads"),
        (LayoutConfig(pp=3), "training.layout.pp = 3 does not divide the model's 4 layers"),
    ],
)
def test_a_layout_that_does_not_divide_is_refused(tmp_path: Path, layout: LayoutConfig, expected: str) -> None:
    with pytest.raises(ConfigError, match=expected):
        check_model_folder(folder(tmp_path), layout=layout)


def test_an_engine_degree_that_does_not_divide_is_refused(tmp_path: Path) -> None:
    assert "rollout.engines tp = 4" in sentence(folder(tmp_path), engine_degrees=(1, 4))


def test_a_vocabulary_that_tp_does_not_divide_is_refused(tmp_path: Path) -> None:
    assert "511 vocabulary entries" in sentence(folder(tmp_path, vocab_size=511), LayoutConfig(tp=2))


def test_model_folder_errors_end_with_exit_code_2() -> None:
    assert ModelFolderError.exit_code == 2


def test_a_tied_head_is_not_among_the_exported_tensors(tmp_path: Path) -> None:
    tied = dict(hf_tensors(read_model_facts(folder(tmp_path))))
    untied = dict(hf_tensors(read_model_facts(folder(tmp_path, tie_word_embeddings=False))))
    assert untied.keys() - tied.keys() == {"lm_head.weight"}
    assert tied["model.layers.0.self_attn.q_proj.weight"] == (192, 128)
    assert tied["model.layers.3.mlp.down_proj.weight"] == (128, 256)


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({"vocab_size": 0}, "vocab_size is 0, but must be above 0 and finite"),
        ({"num_hidden_layers": -4}, "num_layers is -4"),
        ({"rms_norm_eps": float("nan")}, "norm_epsilon is nan"),
        ({"hidden_size": float("inf")}, "lacks a usable value"),
        ({"rope_parameters": {"rope_theta": float("inf")}}, "rope_theta is inf"),
    ],
)
def test_numbers_of_the_model_are_ones_to_calculate_with(tmp_path: Path, changed: dict[str, Any], says: str) -> None:
    assert says in sentence(folder(tmp_path, **changed))


def test_a_byte_order_mark_in_config_json_does_no_harm(tmp_path: Path) -> None:
    path = folder(tmp_path) / "config.json"
    path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes())
    assert read_model_facts(tmp_path).num_layers == 4
