"""A plan on disk: the keys of a configuration that ask for it, under a comment that says what it was made for.

As a file of keys it can be extended or copied from; as a plan (`plan=FILE`) it is held against what the comment says.
"""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import yaml

from libra_core.config import LibraConfig
from libra_core.errors import ConfigError
from libra_core.files import parse_json, read_text
from libra_core.planning.loading import LoadedProblem
from libra_core.planning.runnable import fragment_of
from libra_core.types.forecast import Candidate
from libra_core.yaml_text import read_mapping

_MADE_FOR = "# made for: "
SECTIONS = ("rollout", "training", "elastic")
"""That a plan may set."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MadeFor:
    """What a plan is good for; another one of any of these is another question."""

    version: str
    backend: str
    cluster: str
    model: str

    def differs_from(self, other: "MadeFor") -> list[str]:
        """`model A there, B here` for each that differs."""
        there, here = asdict(self), asdict(other)
        return [f"{name} {there[name]} there, {here[name]} here" for name in there if there[name] != here[name]]


def made_for(config: LibraConfig, loaded: LoadedProblem) -> MadeFor:
    """Of a configuration whose problem was loaded."""
    cluster, model = loaded.problem.cluster, loaded.model
    return MadeFor(
        version=libra_version(),
        backend=config.backend.kind,
        cluster=f"{cluster.num_gpus} x {loaded.device.name} in nodes of {cluster.gpus_per_node}",
        model=f"{model.name}, {model.num_layers} layers, hidden {model.hidden_size}, vocabulary {model.vocab_size}",
    )


def libra_version() -> str:
    """Empty where Libra is not installed as a package."""
    try:
        return version("libra")
    except PackageNotFoundError:
        return ""


def plan_text(candidate: Candidate, loaded: LoadedProblem, made: MadeFor, config_name: str) -> str:
    """The whole file."""
    forecast = candidate.forecast
    comments = (
        f"# A plan of `libra plan`; run it with `libra train {config_name} --set plan=THIS_FILE`.",
        f"{_MADE_FOR}{json.dumps(asdict(made))}",
        f"# forecast: T_iter {forecast.t_iter_s:.4g} s, T_train {forecast.t_train_s:.4g} s, "
        f"{forecast.tokens_per_s:.4g} generated tokens/s; {forecast.terms.binding.value} binds",
        f"# lengths: {loaded.lengths_source}",
        f"# costs: engines {loaded.costs.engine_grounding(candidate.plan)}; "
        f"trainer {loaded.costs.trainer_grounding(candidate.plan)}",
    )
    lines = [" ".join(comment.split()) for comment in comments]
    return "\n".join(lines) + "\n" + yaml.safe_dump(fragment_of(candidate, loaded.problem.train_shape), sort_keys=False)


def read_plan(path: Path, asked: MadeFor) -> dict[str, Any]:
    """The keys that the plan sets.

    Raises:
        ConfigError: when the file is none that `libra plan --write` wrote, or was made for something else.
    """
    again = "write one with `libra plan CONFIG --write FILE`"
    text = read_text(path, "plan", otherwise=f"; say `auto`, or {again}")
    result = next((line for line in text.splitlines() if line.startswith(_MADE_FOR)), None)
    if result is None:
        raise ConfigError(f"{path} is no plan: no line of it begins with {_MADE_FOR.strip()!r}; {again}")
    made = _made_for(parse_json(result.removeprefix(_MADE_FOR), f"{path}: the line {_MADE_FOR.strip()!r}"), path)
    if different := made.differs_from(asked):
        raise ConfigError(f"{path} is a plan for something else ({'; '.join(different)}); {again} for this run")
    return read_fragment(path)


def _made_for(values: Any, path: Path) -> MadeFor:
    names = set(MadeFor.__dataclass_fields__)
    if not isinstance(values, Mapping) or set(values) != names:  # pyright: ignore[reportUnknownArgumentType]
        raise ConfigError(f"{path}: the line {_MADE_FOR.strip()!r} must hold {', '.join(sorted(names))}; plan anew")
    return MadeFor(**{name: str(values[name]) for name in names})


def read_fragment(path: Path) -> dict[str, Any]:
    """The keys of a layout. Raises `ConfigError` for a file that sets anything else, or nothing."""
    values = read_mapping(path, what="layout", examples="configs/experiment/")
    if not values or not set(values) <= set(SECTIONS) or not all(isinstance(part, dict) for part in values.values()):
        raise ConfigError(f"{path} is no layout: it must set keys of {', '.join(SECTIONS)}, and nothing else")
    return values
