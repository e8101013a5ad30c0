"""From the configuration to a planning problem: the one place in this room that reads files (history, device, model)."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from libra_core.config import LibraConfig, plan_of
from libra_core.costs.api import (
    DeviceProfile,
    ModelFacts,
    load_model,
    publication_time,
)
from libra_core.errors import ConfigError
from libra_core.planning.confusion import RouterSkill
from libra_core.planning.example_lengths import LAWS, example_records
from libra_core.planning.history_file import read_history
from libra_core.planning.lengths import length_table
from libra_core.planning.problem import SENDING_SHARE, Cluster, Costs, ModelShape, PlanningProblem, Regime
from libra_core.planning.run_costs import RunCosts, run_costs
from libra_core.planning.runnable import Sessions
from libra_core.types.forecast import Mode
from libra_core.types.lengths import LengthRecord

_EXAMPLES = 2048


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedProblem:
    """A problem and where its numbers come from."""

    problem: PlanningProblem
    costs: RunCosts
    model: ModelFacts
    lengths_source: str

    @property
    def device(self) -> DeviceProfile:
        return self.costs.device


def load_problem(config: LibraConfig, history: Path | None = None) -> LoadedProblem:
    """Read what `planner` names; `history` goes before `planner.history`. Raises `ConfigError`."""
    named = config.planner.model or config.model.path
    if named is None:
        raise ConfigError("planner.model is unset and so is model.path; name one, for example planner.model=qwen3_14b")
    model = load_model(named)
    costs = run_costs(config, model)
    path = history or (Path(config.planner.history) if config.planner.history else None)
    records = read_history(path) if path else example_records(LAWS[config.planner.lengths], _EXAMPLES)
    source = str(path) if path else f"generated after {config.planner.lengths}"
    return LoadedProblem(problem=problem_of(config, records, costs, model), costs=costs, model=model, lengths_source=source)


def problem_of(config: LibraConfig, records: Sequence[LengthRecord], costs: RunCosts, model: ModelFacts) -> PlanningProblem:
    """The problem that a configuration, a history and the evaluators state."""
    degrees = tuple(2**power for power in range(config.planner.gpus_per_node.bit_length()))
    return PlanningProblem(
        cluster=Cluster(num_gpus=config.planner.total_gpus, gpus_per_node=config.planner.gpus_per_node),
        model=ModelShape.of(model),
        regime=regime_of(config),
        lengths=length_table(records, half_life_steps=config.planner.half_life_steps),
        costs=Costs(engines=costs.engines, trainer=costs.trainer, publication_s=publication_time(costs.device, model)),
        rollout_degrees=degrees,
        train_degrees=degrees,
        train_shape=costs.shape,
        active=plan_of(config),
        sessions=Sessions(backend=config.backend.kind, model=model),
        router=_router(config),
        drift=config.planner.drift,
    )


def regime_of(config: LibraConfig) -> Regime:
    """How `rollout`, `training` and `planner` pace the run."""
    rollout, planner = config.rollout, config.planner
    kinds = {"search": (False, True), "always": (True,), "never": (False,)}
    return Regime(
        batch=rollout.groups_per_step * rollout.group_size,
        group_size=rollout.group_size,
        staleness=rollout.staleness,
        age_slack=rollout.age_slack,
        kv_fill=1.0 if rollout.kv_fill is None else rollout.kv_fill,
        max_num_seqs=rollout.max_num_seqs,
        longest_tokens=rollout.max_context_tokens,
        streamed=kinds[planner.streamed],
        trainer_waits=SENDING_SHARE if config.publications_overlap else 1.0,
        modes=tuple(Mode(mode) for mode in planner.modes),
    )


def _router(config: LibraConfig) -> RouterSkill | None:
    accuracy, recall = config.planner.router_accuracy, config.planner.router_tail_recall
    return None if accuracy is None or recall is None else RouterSkill(accuracy=accuracy, tail_recall=recall)
