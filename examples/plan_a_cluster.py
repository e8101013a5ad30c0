"""Divide a cluster between rollout and training, and ask what binds: `libra plan` from Python.

The lengths are generated; `load_problem(config, Path("lengths.jsonl"))` plans for those of a run.
"""

from libra_core.config import load_config
from libra_core.planning.joint_search import plan_resources
from libra_core.planning.loading import load_problem
from libra_core.types.forecast import Candidate, PlanReport

CONFIG = "configs/experiment/r2e_gym_48gpu.yaml"


def plan_at(staleness: int) -> PlanReport:
    """The best plan for 48 A800 at a staleness bound."""
    config = load_config(CONFIG, [f"rollout.staleness={staleness}"])
    return plan_resources(load_problem(config).problem)


def in_words(candidate: Candidate) -> str:
    train, engines = candidate.plan.train, candidate.plan.rollout.engines
    fleet = ", ".join(f"{count} engines of tp {tp}" for tp, count in engines)
    return f"{candidate.mode.value}: train tp {train.tp} pp {train.pp} dp {train.dp}; {fleet}"


def main() -> None:
    for staleness in (0, 1, 4):
        report = plan_at(staleness)
        forecast = report.best.forecast
        print(f"staleness {staleness}: {in_words(report.best)}")
        print(f"  {forecast.t_iter_s:.0f} s an iteration, term {forecast.terms.binding.value} binds")
        for relaxation in report.relaxations[:1]:
            print(f"  {relaxation.change}")


if __name__ == "__main__":
    main()
