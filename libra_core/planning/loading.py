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
    model = planned_model(config)
    costs = run_costs(config, model)
    path = history or (Path(config.planner.history) if config.planner.history else None)
    records, source = (read_history(path), str(path)) if path else _first_estimate(config)
    return LoadedProblem(problem=problem_of(config, records, costs, model), costs=costs, model=model, lengths_source=source)


def planned_model(config: LibraConfig) -> ModelFacts:
    """`planner.model`, else the model that trains. Raises `ConfigError`."""
    return load_model(config.planner.model) if config.planner.model is not None else trained_model(config)


def trained_model(config: LibraConfig) -> ModelFacts:
    """Of `model.path`, or of the embedded policy, whose shape is in the configuration before it is made."""
    if config.model.path is not None:
        return load_model(config.model.path)
    tiny = config.model.tiny
    return ModelFacts(
        name=f"embedded policy ({tiny.num_layers} layers, hidden {tiny.hidden_size})",
        num_layers=tiny.num_layers,
        hidden_size=tiny.hidden_size,
        num_heads=tiny.num_heads,
        num_kv_heads=tiny.num_kv_heads,
        head_dim=tiny.hidden_size // tiny.num_heads,
        ffn_size=tiny.ffn_size,
        vocab_size=tiny.vocab_size,
        tied_embeddings=True,
        qk_norm=True,
        max_positions=tiny.max_positions,
    )


def _first_estimate(config: LibraConfig) -> tuple[list[LengthRecord], str]:
    """After the law that is named; where none is, after the workload's own, within the lengths that the run allows."""
    named, kind, limits = config.planner.lengths, config.workload.kind, config.rollout
    if "lengths" in config.planner.model_fields_set or kind not in LAWS:
        return example_records(LAWS[named], _EXAMPLES), f"generated after {named}"
    law = LAWS[kind].within(limits.max_context_tokens, limits.max_turns)
    return example_records(law, _EXAMPLES), f"generated after {kind}, within {limits.max_context_tokens:,} tokens"


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
