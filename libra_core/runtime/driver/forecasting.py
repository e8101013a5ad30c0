"""Opening the forecaster of a run: a monitor, so that a missing law costs its metrics and one line of the log, never the run."""

import logging

from libra_core.config import LibraConfig
from libra_core.planning.run_forecast import RunForecaster
from libra_core.planning.run_laws import load_run_laws
from libra_core.types.plan import Plan

logger = logging.getLogger(__name__)


def open_forecaster(config: LibraConfig, plan: Plan, model_folder: str) -> RunForecaster | None:
    """None, with the reason in the log, when neither side of the run has a law."""
    laws, missing = load_run_laws(config, plan, model_folder)
    if missing:
        logger.warning("forecasts of this run are incomplete: %s", "; ".join(missing))
    if laws.fleet is None and laws.trainer is None:
        return None
    logger.info("forecasts of this run: %s", "; ".join(laws.grounding))
    last_full_step = config.training.steps - 1 - config.rollout.staleness
    return RunForecaster(laws, half_life_steps=config.planner.half_life_steps, last_full_step=last_full_step)
