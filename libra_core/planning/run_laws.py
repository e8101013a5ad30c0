"""From the configuration to the laws that a training run is forecast by; reads the device, the model's folder and the profile."""

from collections.abc import Sequence
from dataclasses import replace

from libra_core.config import LibraConfig
from libra_core.costs.api import EngineLimits, ModelFacts, load_model
from libra_core.errors import ConfigError
from libra_core.planning.run_costs import RunCosts, kernel_costs, run_costs
from libra_core.planning.run_forecast import RunLaws
from libra_core.planning.training_tree import shape_in
from libra_core.types.laws import EngineLaw
from libra_core.types.plan import Plan


def load_run_laws(config: LibraConfig, plan: Plan, model_folder: str) -> tuple[RunLaws, Sequence[str]]:
    """The laws of the plan's engines and trainer for the model in the folder, and a sentence for each that is not known.

    A profile that cannot be used costs its accuracy, never a law: `RunLaws.grounding` says which costs are meant.
    """
    try:
        costs = run_costs_or_kernels(config, load_model(model_folder))
    except ConfigError as error:
        return RunLaws(), [str(error)]
    missing = [f"no T_rollout: {why}" for tp, _ in plan.rollout.engines if (why := costs.engines.why_not(tp))]
    engines = () if missing else tuple(_engine(config, costs, tp) for tp, _ in plan.rollout.engines)
    shape = replace(shape_in(costs.shape, plan.train), micro_batch_tokens=config.training.micro_batch_tokens)
    fit = costs.trainer.shape_fit(shape)
    if not fit.fits:
        missing.append(f"no T_train: {fit.reason}")
    laws = RunLaws(
        engines=engines,
        num_engines=plan.rollout.num_engines,
        trainer=costs.trainer if fit.fits else None,
        shape=shape,
        grounding=(f"engines: {costs.engine_grounding(plan)}", f"trainer: {costs.trainer_grounding(plan)}"),
    )
    return laws, missing


def run_costs_or_kernels(config: LibraConfig, model: ModelFacts) -> RunCosts:
    """`run_costs`, or the kernels where the profile that was named cannot be used. Raises `ConfigError` for an unknown device."""
    try:
        return run_costs(config, model)
    except ConfigError as error:
        return kernel_costs(config, model, str(error))


def _engine(config: LibraConfig, costs: RunCosts, tp: int) -> tuple[EngineLaw, EngineLimits]:
    law = costs.engines[tp]
    fill = 1.0 if config.rollout.kv_fill is None else config.rollout.kv_fill
    limits = EngineLimits(
        kv_tokens=fill * law.kv_tokens, max_num_seqs=config.rollout.max_num_seqs, kv_capacity=float(law.kv_tokens)
    )
    return law, limits
