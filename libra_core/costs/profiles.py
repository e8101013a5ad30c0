"""Device profiles and model facts from `configs/hardware` and `configs/model`, or from files of the same form."""

from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any, cast

from libra_core.costs.curves import KernelCurve
from libra_core.costs.facts import DeviceProfile, LinkModel, ModelFacts, Provenance
from libra_core.errors import ConfigError
from libra_core.files import json_object, parse_json, read_text
from libra_core.shipped import CONFIGS
from libra_core.yaml_text import read_mapping

_GROUNDINGS = ("measured", "derived", "datasheet")
_SCALARS = (
    "gpus_per_node",
    "memory_bytes",
    "peak_flops",
    "memory_bytes_per_s",
    "intra_latency_s",
    "intra_bytes_per_s",
    "inter_latency_s",
    "inter_bytes_per_s",
    "loading_bytes_per_s",
    "elementwise_launch_s",
    "host_s",
    "host_s_per_sequence",
    "engine_workspace_bytes",
    "training_workspace_bytes",
    "training_efficiency",
    "engine_boot_s",
)
_ALIASES = {"a100": "a100_sxm_80", "a800": "a800_sxm_80", "h100": "h100_sxm_80", "h200": "h200_sxm_141", "cpu": "cpu_host"}
_MODEL_ALIASES = {"llama318b": "llama3_8b", "llama3170b": "llama3_70b", "llama3370b": "llama3_70b"}
"""Llama 3, 3.1 and 3.3 of one size share their shape."""
_MODEL_SUFFIXES = ("instruct", "fp8", "base", "bf16")
Values = dict[str, Any]


def load_device(name_or_path: str | Path) -> DeviceProfile:
    """A name of `configs/hardware` (also `a100`, `a800`, `h100`, `h200`, `cpu`) or the path of a profile.

    Raises:
        ConfigError: for an unknown name, a missing or unreadable file, or a number without value, grounding or source.
    """
    name = str(name_or_path)
    return _device(_find(_ALIASES.get(name.lower(), name), "hardware"))


def load_model(name_or_path: str | Path) -> ModelFacts:
    """A name of `configs/model`, a YAML of that form, an HF folder or its `config.json`; raises `ConfigError`."""
    path = Path(name_or_path)
    if path.is_dir():
        path = path / "config.json"
    if path.suffix == ".json":
        return model_from_hf(_read_json(path), name=path.parent.name)
    name = str(name_or_path)
    file = path if path.is_file() else _find(_MODEL_ALIASES.get(_plain(name), name), "model")
    values = _read_yaml(file)
    try:
        return ModelFacts(**values)
    except TypeError as error:
        raise ConfigError(f"{file}: {error}; compare it with configs/model/qwen3_14b.yaml") from None


def model_from_hf(values: Mapping[str, Any], *, name: str) -> ModelFacts:
    """Facts from a `config.json` of the Llama, Qwen2, Qwen3 or Qwen3-MoE layout; raises `ConfigError` for a missing key."""
    try:
        heads = int(values["num_attention_heads"])
        hidden = int(values["hidden_size"])
        experts = int(values.get("num_experts") or values.get("num_local_experts") or 0)
        return ModelFacts(
            name=name,
            num_layers=int(values["num_hidden_layers"]),
            hidden_size=hidden,
            num_heads=heads,
            num_kv_heads=int(values.get("num_key_value_heads") or heads),
            head_dim=int(values.get("head_dim") or (128 if _is_qwen3(values) else hidden // heads)),
            ffn_size=int(values["intermediate_size"]),
            vocab_size=int(values["vocab_size"]),
            tied_embeddings=bool(values.get("tie_word_embeddings", False)),
            qk_norm=_is_qwen3(values),
            num_experts=experts,
            experts_per_token=int(values.get("num_experts_per_tok") or 0) if experts else 0,
            expert_ffn_size=int(values.get("moe_intermediate_size") or values["intermediate_size"]) if experts else 0,
            weight_dtype="fp8" if _quantization(values) == "fp8" else "bf16",
            max_positions=int(values.get("max_position_embeddings") or 0),
            source=f"config.json of {name}",
        )
    except (KeyError, TypeError, ValueError) as error:
        raise ConfigError(f"config.json of {name} lacks a usable value: {error}") from None


def _is_qwen3(values: Mapping[str, Any]) -> bool:
    return str(values.get("model_type", "")).startswith("qwen3")


def _quantization(values: Mapping[str, Any]) -> str:
    return str((values.get("quantization_config") or {}).get("quant_method", ""))


def _find(name: str, kind: str) -> Path:
    path = Path(name)
    if path.is_file():
        return path
    folder = CONFIGS / kind
    known = {_plain(file.stem): file for file in sorted(folder.glob("*.yaml"))}
    result = known.get(_plain(path.name.removesuffix(".yaml")))
    if result is None:
        names = ", ".join(file.stem for file in known.values())
        raise ConfigError(f"no {kind} profile {name!r}: give the path of a YAML file or one of {names}")
    return result


def _plain(name: str) -> str:
    """`Qwen/Qwen3-14B`, `Qwen3-14B-FP8` and `qwen3_14b` are one name."""
    plain = "".join(letter for letter in name.rsplit("/", 1)[-1].lower() if letter.isalnum())
    for suffix in _MODEL_SUFFIXES:
        plain = plain.removesuffix(suffix)
    return plain


@lru_cache(maxsize=32)
def _device(file: Path) -> DeviceProfile:
    values = _read_yaml(file)
    base = _device(_find(values["derived_from"], "hardware")) if "derived_from" in values else None
    numbers, provenance = _numbers(values.get("values", {}), file)
    curves: dict[str, KernelCurve] = {}
    if base is not None:
        rule = str(values.get("rule", ""))
        numbers = {**_flat(base), **numbers}
        curves = dict(base.curves)
        inherited = {name: _derived(item, base.name, rule) for name, item in base.provenance.items()}
        provenance = {**inherited, **provenance}
    if "curves" in values:
        read, sources = _curves(file.parent / values["curves"])
        curves, provenance = {**curves, **read}, {**provenance, **sources}
    for curve, lender in values.get("borrowed_curves", {}).items():
        source = _device(_find(lender, "hardware"))
        curves[curve] = source.curves[curve]
        provenance[curve] = _derived(source.provenance[curve], source.name, "its efficiencies on the peaks of this device")
    missing = [name for name in _SCALARS if name not in numbers]
    if missing:
        raise ConfigError(f"{file} lacks {', '.join(missing)} under values")
    return _assembled(values, numbers, curves, provenance)


def _assembled(
    values: Values, numbers: dict[str, float], curves: dict[str, KernelCurve], provenance: dict[str, Provenance]
) -> DeviceProfile:
    intra = LinkModel(latency_s=numbers.pop("intra_latency_s"), bytes_per_s=numbers.pop("intra_bytes_per_s"))
    inter = LinkModel(latency_s=numbers.pop("inter_latency_s"), bytes_per_s=numbers.pop("inter_bytes_per_s"))
    gpus_per_node = int(numbers.pop("gpus_per_node"))
    return DeviceProfile(
        name=values["name"],
        kind=values.get("kind", "gpu"),
        software=values.get("software", ""),
        gpus_per_node=gpus_per_node,
        curves=curves,
        provenance=provenance,
        intra=intra,
        inter=inter,
        **cast(dict[str, Any], numbers),
    )


def with_values(device: DeviceProfile, **numbers: float) -> DeviceProfile:
    """The same device with some scalars replaced, marked `derived`."""
    marks = {name: Provenance(grounding="derived", source="given by the caller") for name in numbers}
    return replace(device, provenance={**device.provenance, **marks}, **cast(dict[str, Any], numbers))


def _derived(item: Provenance, base: str, rule: str) -> Provenance:
    return Provenance(grounding="derived", source=f"{base}, {rule} ({item.grounding}: {item.source})")


def _flat(device: DeviceProfile) -> dict[str, float]:
    links = {
        f"{side}_{part}": float(getattr(getattr(device, side), part))
        for side in ("intra", "inter")
        for part in ("latency_s", "bytes_per_s")
    }
    return links | {name: float(getattr(device, name)) for name in _SCALARS if name not in links}


def _numbers(values: Mapping[str, Any], file: Path) -> tuple[dict[str, float], dict[str, Provenance]]:
    numbers: dict[str, float] = {}
    provenance: dict[str, Provenance] = {}
    for name, item in values.items():
        if name not in _SCALARS:
            raise ConfigError(f"{file}: unknown value {name!r}; known are {', '.join(_SCALARS)}")
        numbers[name] = float(item["value"])
        provenance[name] = _provenance(item, f"{file}: {name}")
    return numbers, provenance


def _curves(file: Path) -> tuple[dict[str, KernelCurve], dict[str, Provenance]]:
    curves: dict[str, KernelCurve] = {}
    provenance: dict[str, Provenance] = {}
    for name, item in (_read_yaml(file) if file.exists() else {}).items():
        provenance[name] = _provenance(item, f"{file}: {name}")
        curves[name] = KernelCurve(
            launch_s=float(item["launch_s"]),
            compute_efficiency=float(item["compute_efficiency"]),
            memory_efficiency=float(item["memory_efficiency"]),
            power=float(item["power"]),
            knots=tuple(tuple(axis) for axis in item.get("knots", ())),
            table=tuple(item.get("table", ())),
            median_error=item.get("held_out_median_error", float("nan")),
        )
    return curves, provenance


def _provenance(item: Mapping[str, Any], where: str) -> Provenance:
    grounding, source = item.get("grounding"), item.get("source")
    if grounding not in _GROUNDINGS or not source:
        raise ConfigError(f"{where} needs grounding ({', '.join(_GROUNDINGS)}) and source")
    return Provenance(grounding=grounding, source=str(source))


def _read_yaml(file: Path) -> Values:
    return read_mapping(file, what="profile", examples="configs/")


def _read_json(file: Path) -> Values:
    return json_object(parse_json(read_text(file, "model configuration"), str(file)), str(file))
