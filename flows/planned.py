"""From a configuration that asks for a plan to one that says what runs: `plan=auto` and `plan=FILE`. Imports no Prefect."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from flows.views.plan_view import fleet_text, layout_text, mode_text
from libra_core.config import LibraConfig, plan_of
from libra_core.config.loading import apply_override, changed_config
from libra_core.config.paths import PLAN_AUTO
from libra_core.errors import ConfigError, LibraError
from libra_core.planning.joint_search import plan_resources
from libra_core.planning.loading import LoadedProblem, load_problem, planned_model
from libra_core.planning.named_layout import forecast_named
from libra_core.planning.plan_file import made_for, plan_text, read_fragment, read_plan
from libra_core.planning.run_costs import run_costs
from libra_core.planning.runnable import fragment_of
from libra_core.tracking.earlier_runs import earlier_lengths
from libra_core.tracking.planned import PLAN_NAME, PlanRecord
from libra_core.types.forecast import Candidate, PlanReport

CALIBRATION = "calibration.yaml"
"""Under the run root, where `libra calibrate` leaves it."""
_OF_CLUSTER = {"nodes", "gpus_per_node", "num_gpus"}
_NODE = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanRequest:
    """A configuration with the cluster and costs that it is planned for, and its loaded problem."""

    config: LibraConfig
    loaded: LoadedProblem


@dataclass(frozen=True, slots=True, kw_only=True)
class Planned:
    """What runs, and what is known of it; `record` and `line` are empty where no plan was asked for."""

    config: LibraConfig
    record: PlanRecord | None = None
    line: str = ""


def plan_request(config: LibraConfig, history: Path | None = None) -> PlanRequest:
    """Lengths: `history`, else those of an earlier run of the workload, else `planner.history`, else a first estimate.

    Where `planner` names no cluster it is the GPUs that the configuration uses; where it names no profile, the calibration under
    the run root.
    """
    config = _with_calibration(_with_cluster(config))
    return PlanRequest(config=config, loaded=load_problem(config, history or earlier_lengths(config)))


def planned(config: LibraConfig, config_name: str = "CONFIG") -> Planned:
    """The configuration that a run of it starts with.

    Raises:
        ConfigError: there is no such plan, it was made for something else, or does not go with the rest of the configuration.
        ResourceError: no plan can be run.
    """
    if config.plan is None:
        return Planned(config=config)
    asked = _asked(config)
    request = plan_request(config)
    loaded = request.loaded
    report = plan_resources(loaded.problem)
    made = made_for(request.config, loaded)
    if asked == PLAN_AUTO:
        if report.against:
            raise ConfigError(f"plan = auto: no plan that this version runs was found: {'; '.join(report.against)}")
        fragment, chosen = fragment_of(report.best, loaded.problem.train_shape), report.best
    else:
        fragment, chosen = read_plan(Path(asked), made), None
    runs = with_fragment(request.config, fragment, f"plan = {asked}")
    chosen = chosen or forecast_named(loaded.problem, runs)
    others = report.runner_ups if chosen is report.best else (report.best, *report.runner_ups)
    values = {"asked": asked, "made_for": asdict(made), "staleness": config.rollout.staleness}
    values |= {"chosen": candidate_json(chosen), "others": [candidate_json(item) for item in others]}
    record = PlanRecord(values=values | sources_json(chosen, loaded), text=plan_text(chosen, loaded, made, config_name))
    return Planned(config=runs, record=record, line=_line(asked, chosen, others, loaded))


def named_layout(config: LibraConfig, layout: Sequence[str]) -> LibraConfig:
    """With each of `layout`, a file of layout keys or `key=value`, in place of what it says. Raises `ConfigError`."""
    for text in layout:
        if "=" in text:
            changes: dict[str, Any] = {}
            apply_override(changes, text, LibraConfig)
        else:
            changes = read_fragment(Path(text))
        config = with_fragment(config, changes, f"--layout {text}")
    return config


def with_fragment(config: LibraConfig, fragment: dict[str, Any], asked: str) -> LibraConfig:
    """The plan's keys in place of the configuration's own; `asked` begins the sentence where they do not go together."""
    try:
        return changed_config(config, fragment | {"plan": None})
    except ConfigError as error:
        raise ConfigError(f"{asked} does not go with the rest of the configuration: {error}") from None


def _asked(config: LibraConfig) -> str:
    """A run that goes on keeps the plan that it chose."""
    assert config.plan is not None
    resumed = config.run.resumed_folder
    if config.plan == PLAN_AUTO and resumed is not None and (resumed / PLAN_NAME).exists():
        return str(resumed / PLAN_NAME)
    return config.plan


def _with_cluster(config: LibraConfig) -> LibraConfig:
    if config.planner.model_fields_set & _OF_CLUSTER:
        return config
    plan = plan_of(config)
    sides = (plan.train.num_gpus, plan.rollout.num_gpus)
    count = max(sides) if config.rollout.mode == "colocated" else sum(sides)
    each = min(count, _NODE)
    return changed_config(config, {"planner": {"nodes": -(-count // each), "gpus_per_node": each, "num_gpus": count}})


def _with_calibration(config: LibraConfig) -> LibraConfig:
    """One that is damaged or of other software is passed over, as nobody named it."""
    path = Path(config.run.root) / CALIBRATION
    if config.planner.profile is not None or config.backend.kind != "cpu" or not path.exists():
        return config
    calibrated = changed_config(config, {"planner": {"profile": str(path.absolute())}})
    try:
        result = run_costs(calibrated, planned_model(config))
    except LibraError:
        return config
    return calibrated if result.uses_profile else config


def _line(asked: str, chosen: Candidate, others: Sequence[Candidate], loaded: LoadedProblem) -> str:
    """One line for the log."""
    best_other = min(others, key=lambda item: item.forecast.t_iter_s, default=None)
    against = "nothing else fits" if best_other is None else f"next {_words(best_other)}"
    plan, costs = chosen.plan, loaded.costs
    return (
        f"plan {asked}: {_words(chosen)}; {against}; lengths: {loaded.lengths_source}; costs: engines "
        f"{costs.engine_grounding(plan)}, trainer {costs.trainer_grounding(plan)}"
    )


def _words(item: Candidate) -> str:
    seconds = f"forecast T_iter {item.forecast.t_iter_s:.3g} s"
    return f"{mode_text(item)}, training on {layout_text(item)}, rollout on {fleet_text(item)}, {seconds}"


def plan_json(report: PlanReport, loaded: LoadedProblem, solve_s: float) -> dict[str, Any]:
    """Everything that the table of `libra plan` says, in plain values."""
    return {
        "best": candidate_json(report.best),
        "runner_ups": [candidate_json(item) for item in report.runner_ups],
        "binding": report.best.forecast.terms.binding.value,
        "relaxations": [asdict(item) for item in report.relaxations],
        "placement": [asdict(item) for item in report.placement],
        "pruned": [asdict(item) for item in report.pruned],
        "notes": list(report.notes),
        "runnable": not report.against,
        **sources_json(report.best, loaded),
        "num_gpus": loaded.problem.cluster.num_gpus,
        "num_candidates": report.num_candidates,
        "solve_s": round(solve_s, 4),
    }


def sources_json(chosen: Candidate, loaded: LoadedProblem) -> dict[str, Any]:
    """Where the numbers of a plan come from."""
    return {
        "device": loaded.device.name,
        "model": loaded.model.name,
        "lengths": loaded.lengths_source,
        "grounding": str(loaded.device.grounding),
        "engine_costs": loaded.costs.engine_grounding(chosen.plan),
        "trainer_costs": loaded.costs.trainer_grounding(chosen.plan),
    }


def candidate_json(candidate: Candidate) -> dict[str, Any]:
    """A plan with its forecast."""
    plan, rollout = candidate.plan, candidate.plan.rollout
    return {
        "mode": candidate.mode.value,
        "streamed": candidate.streamed,
        "num_gpus": candidate.num_gpus,
        "train": asdict(plan.train) | {"num_gpus": plan.train.num_gpus},
        "rollout": {"engines": {str(tp): count for tp, count in rollout.engines}, "num_gpus": rollout.num_gpus},
        "hybrid_replicas": plan.hybrid_replicas,
        "slots_per_engine": {str(tp): slots for tp, slots in candidate.slots_per_engine},
        "forecast": asdict(candidate.forecast) | {"binding": candidate.forecast.terms.binding.value},
    }
