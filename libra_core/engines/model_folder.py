"""What an HF model folder holds, checked without torch before anything heavy starts."""

import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from libra_core.config.training import LayoutConfig
from libra_core.errors import ConfigError, ModelFolderError

FAMILIES = ("qwen3", "qwen2", "llama")
TOKENIZER_FILES = ("tokenizer.json", "tokenizer.model", "vocab.json")
"""One of them is enough."""
_NO_ROPE_SCALING = (None, "default")


@dataclass(frozen=True, slots=True, kw_only=True)
class DecoderShape:
    """The shape of a dense decoder of one of `FAMILIES`."""

    model_type: str
    num_layers: int
    hidden_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    ffn_size: int
    vocab_size: int
    tied_embeddings: bool
    max_positions: int
    rope_theta: float
    norm_epsilon: float

    @property
    def qkv_bias(self) -> bool:
        return self.model_type == "qwen2"

    @property
    def qk_norm(self) -> bool:
        return self.model_type == "qwen3"


def read_model_facts(path: str | Path) -> DecoderShape:
    """Shape of the model in `path`; raises `ModelFolderError` when config.json is missing, broken or of an unsupported model."""
    folder = Path(path)
    values = _read_config(folder)
    model_type = values.get("model_type")
    if model_type not in FAMILIES:
        raise ModelFolderError(f"{folder}: model_type is {model_type!r}, but Libra trains {', '.join(FAMILIES)}")
    _refuse_variants(folder, values)
    try:
        facts = _facts(model_type, values)
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise ModelFolderError(f"{folder}/config.json lacks a usable value: {error}; export the model again") from None
    for name, value in asdict(facts).items():
        if isinstance(value, (int, float)) and not isinstance(value, bool) and not 0 < value < math.inf:
            raise ModelFolderError(
                f"{folder}/config.json: {name} is {value}, but must be above 0 and finite; export the model again"
            )
    return facts


def check_model_folder(path: str | Path, *, layout: LayoutConfig, engine_degrees: Sequence[int] = ()) -> DecoderShape:
    """Everything that a start on this folder needs: files, a supported family, and shapes that the parallelism divides.

    Raises:
        ModelFolderError: when the folder is missing, incomplete or of an unsupported family.
        ConfigError: when tp or pp does not divide the model.
    """
    folder = Path(path)
    if not folder.is_dir():
        raise ModelFolderError(
            f"model folder {folder} does not exist; set model.path to an HF folder, or unset it for the tiny policy"
        )
    facts = read_model_facts(folder)
    if not any((folder / name).is_file() for name in TOKENIZER_FILES):
        raise ModelFolderError(
            f"{folder} has no tokenizer (none of {', '.join(TOKENIZER_FILES)}); copy the tokenizer files into it"
        )
    weight_files(folder)
    check_divides(facts, layout=layout, engine_degrees=engine_degrees)
    return facts


def check_divides(facts: DecoderShape, *, layout: LayoutConfig, engine_degrees: Sequence[int] = ()) -> None:
    """Raises `ConfigError` for a degree that does not divide heads, vocabulary, feed-forward or layers."""
    for key, degree in [("training.layout.tp", layout.tp), *(("rollout.engines tp", tp) for tp in sorted(set(engine_degrees)))]:
        for what, size in [
            ("attention heads", facts.num_heads),
            ("key-value heads", facts.num_kv_heads),
            ("vocabulary entries", facts.vocab_size),
            ("feed-forward units", facts.ffn_size),
        ]:
            if size % degree:
                raise ConfigError(f"{key} = {degree} does not divide the model's {size} {what}; choose a tp that divides them")
    if facts.num_layers % layout.pp:
        raise ConfigError(
            f"training.layout.pp = {layout.pp} does not divide the model's {facts.num_layers} layers; choose a pp that does"
        )


def weight_files(folder: Path) -> dict[str, Path]:
    """File of each stored tensor by HF name; raises `ModelFolderError` when weights or a listed shard are missing."""
    index = folder / "model.safetensors.index.json"
    if index.is_file():
        try:
            names = dict(json.loads(index.read_text(encoding="utf-8-sig"))["weight_map"])
        except (ValueError, KeyError, TypeError):
            raise ModelFolderError(f"{index} is not a readable weight index; download the model again") from None
        missing = sorted({file for file in names.values() if not (folder / file).is_file()})
        if missing:
            raise ModelFolderError(f"{folder} lacks the weight shard {missing[0]} (of {len(missing)} missing); download it again")
        return {name: folder / file for name, file in names.items()}
    single = folder / "model.safetensors"
    if not single.is_file():
        raise ModelFolderError(f"{folder} has no weights (model.safetensors or its index); save the model as safetensors")
    return dict.fromkeys(_tensor_names(single), single)


def _tensor_names(file: Path) -> list[str]:
    """Names from the safetensors header: an 8-byte little-endian length, then JSON with the offsets of every tensor."""
    size = file.stat().st_size
    try:
        with file.open("rb") as stream:
            header_bytes = int.from_bytes(stream.read(8), "little")
            header = json.loads(stream.read(min(header_bytes, size)))
        end = max((entry["data_offsets"][1] for name, entry in header.items() if name != "__metadata__"), default=0)
    except (ValueError, KeyError, TypeError, AttributeError):
        raise ModelFolderError(f"{file} is damaged; copy it again") from None
    if size != 8 + header_bytes + end:
        raise ModelFolderError(f"{file} is cut short: {size} bytes instead of {8 + header_bytes + end}; copy it again")
    return [name for name in header if name != "__metadata__"]


def _read_config(folder: Path) -> dict[str, Any]:
    file = folder / "config.json"
    if not file.is_file():
        raise ModelFolderError(f"{folder} has no config.json; point model.path at an HF model folder")
    try:
        values = json.loads(file.read_text(encoding="utf-8-sig"))
    except (ValueError, OSError) as error:
        raise ModelFolderError(f"{file} is not readable JSON ({error}); export the model again") from None
    if not isinstance(values, dict):
        raise ModelFolderError(f"{file} holds {type(values).__name__} instead of an object; export the model again")
    return values


def _refuse_variants(folder: Path, values: dict[str, Any]) -> None:
    """Features of the families that the Megatron model is not built for; training them would be silently wrong."""
    rope = {**(values.get("rope_scaling") or {}), **(values.get("rope_parameters") or {})}
    scaling = rope.get("rope_type", rope.get("type"))
    model_type = values["model_type"]
    for key, refused, wanted in [
        ("hidden_act", values.get("hidden_act", "silu") != "silu", "silu"),
        ("attention_bias", bool(values.get("attention_bias")) and model_type != "qwen2", "false"),
        ("mlp_bias", bool(values.get("mlp_bias")), "false"),
        ("use_sliding_window", bool(values.get("use_sliding_window")), "false"),
    ]:
        if refused:
            raise ModelFolderError(f"{folder}: {key} is {values[key]!r}, but Libra trains only models with {key} {wanted}")
    if scaling not in _NO_ROPE_SCALING:
        raise ModelFolderError(f"{folder}: rope_type is {scaling!r}, but Libra trains only models with unscaled RoPE")


def _facts(model_type: str, values: dict[str, Any]) -> DecoderShape:
    heads = int(values["num_attention_heads"])
    rope = values.get("rope_parameters") or {}
    return DecoderShape(
        model_type=model_type,
        num_layers=int(values["num_hidden_layers"]),
        hidden_size=int(values["hidden_size"]),
        num_heads=heads,
        num_kv_heads=int(values.get("num_key_value_heads") or heads),
        head_dim=_head_dim(model_type, values, heads),
        ffn_size=int(values["intermediate_size"]),
        vocab_size=int(values["vocab_size"]),
        tied_embeddings=bool(values.get("tie_word_embeddings", False)),
        max_positions=int(values["max_position_embeddings"]),
        rope_theta=float(rope.get("rope_theta") or values.get("rope_theta") or 10000.0),
        norm_epsilon=float(values.get("rms_norm_eps", 1e-6)),
    )


def _head_dim(model_type: str, values: dict[str, Any], heads: int) -> int:
    if values.get("head_dim"):
        return int(values["head_dim"])
    return 128 if model_type == "qwen3" else int(values["hidden_size"]) // heads
