"""The forecast of a layout that somebody names, by the same laws as those of the planner's own."""

from dataclasses import replace

from libra_core.config import LibraConfig, plan_of
from libra_core.errors import ConfigError
from libra_core.planning.candidates import search_inputs
from libra_core.planning.placement import place
from libra_core.planning.problem import PlanningProblem
from libra_core.planning.proposals import forecast_as
from libra_core.planning.training_tree import Cuts, of_fullest_replica, shape_in
from libra_core.types.forecast import Candidate, Mode
from libra_core.types.plan import Plan


def forecast_named(problem: PlanningProblem, config: LibraConfig) -> Candidate:
    """The layout that `config` asks for, on the cluster and with the lengths and costs of the problem.

    Raises:
        ConfigError: it does not run, does not fit, or is a fleet that has no forecast.
        ResourceError: its groups do not fit the nodes.
    """
    plan, mode = plan_of(config), Mode(config.rollout.mode)
    cuts = Cuts()
    in_turns = mode is Mode.COLOCATED
    costs = replace(problem.costs, publication_s=lambda _train, _engines: 0.0) if in_turns else problem.costs
    inputs = search_inputs(replace(problem, costs=costs, rollout_degrees=tuple(dict(plan.rollout.engines))), cuts)
    against = list(problem.sessions.against(plan, mode)) if problem.sessions else []
    against += cuts.examples.values()
    against += _against_training(problem, plan)
    if against:
        raise ConfigError(f"the layout that was named does not run here: {'; '.join(against)}; name another")
    place(problem.cluster, plan, shared=in_turns)
    return forecast_as(inputs, plan, mode=mode, streamed=config.streamed)


def _against_training(problem: PlanningProblem, plan: Plan) -> list[str]:
    shape = shape_in(problem.train_shape, plan.train)
    fit = problem.costs.trainer.shape_fit(shape)
    if not fit.fits:
        return [fit.reason]
    load = problem.lengths.training_load(problem.regime.batch, problem.regime.longest_tokens)
    fit = problem.costs.trainer.estimate(shape, of_fullest_replica(load, plan.train.dp)).fit
    return [] if fit.fits else [fit.reason]
