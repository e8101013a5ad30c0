"""Engines and trainer of one model as `libra calibrate` measured them: laws fitted and judged on cells they never saw."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from libra_core.costs.laws import EngineLaws
from libra_core.costs.least_squares import left_out, nonnegative_fit
from libra_core.costs.measured_training import TrainerLawFit
from libra_core.errors import ConfigError
from libra_core.types.laws import EngineLaw
from libra_core.yaml_text import parse_yaml

PROFILE_VERSION = 2
_PLAIN: dict[Any, tuple[type, ...]] = {int: (int,), float: (int, float), str: (str,)}
"""Of a field's type: what YAML may hold there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodeCell:
    """Mean decode step at one batch and one mean context."""

    batch: int
    context_tokens: float
    """Of all sequences together."""
    step_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefillCell:
    """One fresh prompt to its first token."""

    prompt_tokens: int
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineLawFit:
    """An engine of one degree."""

    tp: int
    law: EngineLaw
    held_out_median_error: float
    """Each decode cell forecast by the law of all other cells."""
    num_cells: int


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredProfile:
    """What `libra calibrate` writes."""

    version: int
    host: str
    device: str
    """Processor and number of cores."""
    model: str
    measured_on: str
    clock: str
    """Of the engines: `cpu` seconds of the engine's process on a shared host, else `wall`. Trainers always count `cpu`."""
    software: Mapping[str, str]
    engines: tuple[EngineLawFit, ...]
    trainers: tuple[TrainerLawFit, ...]
    max_context_tokens: int

    @property
    def engine_laws(self) -> EngineLaws:
        """By degree, with the caches that the engines reported."""
        return EngineLaws(of={engine.tp: replace(engine.law, source=self._source(engine)) for engine in self.engines})

    def trainer(self, tp: int, pp: int) -> TrainerLawFit:
        """Raises `ConfigError` for a layout that was not measured."""
        laws = {(law.tp, law.pp): law for law in self.trainers}
        if (tp, pp) not in laws:
            measured = ", ".join(f"tp {one} pp {other}" for one, other in sorted(laws)) or "none"
            raise ConfigError(f"a trainer of tp {tp} pp {pp} was not measured; measured: {measured}")
        return laws[tp, pp]

    def stored(self) -> dict[str, Any]:
        """As the file holds it."""
        values = asdict(self)
        values["engines"], values["trainers"] = [_stored_engine(engine) for engine in self.engines], list(values["trainers"])
        return values

    def _source(self, engine: EngineLawFit) -> str:
        return f"tp {engine.tp} measured {self.measured_on} (held-out median error {engine.held_out_median_error:.1%})"


def fit_engine(tp: int, kv_tokens: int, decode: Sequence[DecodeCell], prefill: Sequence[PrefillCell]) -> EngineLawFit:
    """Non-negative relative least squares of both laws; at least four decode cells and three prefill cells."""
    at = np.array([[1.0, cell.batch, cell.context_tokens] for cell in decode])
    steps = np.array([cell.step_s for cell in decode])
    law, mean_error = nonnegative_fit(at, steps)
    tokens = np.array([float(cell.prompt_tokens) for cell in prefill])
    first, _ = nonnegative_fit(
        np.stack([np.ones_like(tokens), tokens, tokens**2 / 2], axis=1), np.array([cell.seconds for cell in prefill])
    )
    return EngineLawFit(
        tp=tp,
        law=EngineLaw(
            a_s=law[0],
            b_s=law[1],
            c_s=law[2],
            prefill_a_s=first[0],
            prefill_b_s_per_token=first[1],
            prefill_c_s_per_token2=first[2],
            kv_tokens=kv_tokens,
            fit_error=mean_error,
        ),
        held_out_median_error=float(np.median(np.abs(left_out(nonnegative_fit, at, steps) / steps - 1))),
        num_cells=len(decode),
    )


def write_measured(profile: MeasuredProfile, file: Path) -> None:
    """Store as YAML, all or nothing."""
    file.parent.mkdir(parents=True, exist_ok=True)
    unfinished = file.with_name(f".{file.name}.part")
    unfinished.write_text(yaml.safe_dump(profile.stored(), sort_keys=False), encoding="utf-8")
    unfinished.replace(file)


def read_measured(file: Path, *, software: Mapping[str, str] | None = None) -> MeasuredProfile:
    """Read a stored profile.

    Args:
        software: versions of this process; a profile measured with others is refused. None accepts any.

    Raises:
        ConfigError: for a missing or damaged file, another format version, or other software.
    """
    try:
        values: dict[str, Any] = parse_yaml(file.read_text(encoding="utf-8"))
        version = values["version"]
        profile = _profile(values) if version == PROFILE_VERSION else None
    except (OSError, yaml.YAMLError, KeyError, TypeError, ValueError) as error:
        raise ConfigError(f"{file} is no calibration profile ({error}); run `libra calibrate` again") from None
    if profile is None:
        raise ConfigError(f"{file} has version {version}, this Libra reads {PROFILE_VERSION}; run `libra calibrate` again")
    require_software(profile, software or {}, str(file))
    return profile


def require_software(profile: MeasuredProfile, software: Mapping[str, str], where: str) -> None:
    """Raises `ConfigError` unless the profile was measured with these versions."""
    different = {name: (profile.software.get(name), want) for name, want in software.items()}
    changed = [f"{name} {old} then, {new} now" for name, (old, new) in different.items() if old != new]
    if changed:
        raise ConfigError(f"{where} was measured with other software ({'; '.join(changed)}); run `libra calibrate` again")


def _profile(values: dict[str, Any]) -> MeasuredProfile:
    engines = tuple(_engine_law(**engine) for engine in values["engines"])
    trainers = tuple(TrainerLawFit(**trainer) for trainer in values["trainers"])
    software = dict[str, str](**values["software"])
    rest: dict[str, Any] = {name: value for name, value in values.items() if name not in ("engines", "trainers", "software")}
    profile = MeasuredProfile(engines=engines, trainers=trainers, software=software, **rest)
    for part in (profile, *engines, *(engine.law for engine in engines), *trainers):
        _require_plain(part)
    return profile


def _require_plain(part: MeasuredProfile | EngineLawFit | EngineLaw | TrainerLawFit) -> None:
    """Raises `TypeError` for a number or text of the part that is none."""
    for item in fields(part):
        value = getattr(part, item.name)
        if item.type in _PLAIN and not isinstance(value, _PLAIN[item.type]):
            raise TypeError(f"{item.name} is {value!r}")


def _stored_engine(engine: EngineLawFit) -> dict[str, Any]:
    """The file keeps the cache beside the coefficients."""
    values = asdict(engine)
    law = values.pop("law")
    del law["source"]
    return {"tp": values.pop("tp"), "kv_tokens": law.pop("kv_tokens"), "coefficients": law, **values}


def _engine_law(*, coefficients: dict[str, Any], kv_tokens: int, **rest: Any) -> EngineLawFit:
    return EngineLawFit(law=EngineLaw(kv_tokens=kv_tokens, **coefficients), **rest)
