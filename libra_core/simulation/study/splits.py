"""How each system divides the GPUs before its first step."""

from dataclasses import dataclass, replace

import numpy as np

from libra_core.errors import ResourceError
from libra_core.planning.candidates import candidate_of
from libra_core.planning.joint_search import Evaluated, evaluate_all, plan_resources
from libra_core.planning.lengths import LengthTable
from libra_core.simulation.study.beliefs import problem
from libra_core.simulation.study.config import StudyConfig, SystemConfig
from libra_core.types.forecast import Candidate
from libra_core.types.plan import Plan


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """The first plan, and how it is run."""

    candidate: Candidate

    @property
    def plan(self) -> Plan:
        return self.candidate.plan

    @property
    def streamed(self) -> bool:
        return self.candidate.streamed


def first_plan(study: StudyConfig, system: SystemConfig, lengths: LengthTable) -> Start:
    """Every rule but `hindsight`, which needs runs. Raises `ResourceError` when nothing fits."""
    if system.split == "planner":
        return Start(candidate=plan_resources(problem(study, system, lengths)).best)
    inputs, evaluated = evaluate_all(problem(study, system, lengths))
    rows = [row for row, choice in enumerate(evaluated.choices) if choice.tp == system.degrees[0]]
    if not rows:
        raise ResourceError(f"{study.gpus} GPUs leave no engine of tp {system.degrees[0]} beside a trainer")
    match system.split:
        case "greedy":
            row = min(rows, key=lambda row: _throughput_time(evaluated, row))
        case _:
            half = study.gpus // 2
            row = min(
                rows, key=lambda row: (abs(evaluated.choices[row].leaf.layout.num_gpus - half), evaluated.solution.trainer_s[row])
            )
    start = Start(candidate=candidate_of(inputs, evaluated.choices[row], evaluated.solution, row))
    return _with_fleet(start, system) if system.split == "fixed_fleet" else start


def grid(study: StudyConfig, system: SystemConfig, lengths: LengthTable, sizes: int = 9) -> list[Start]:
    """Starts that hindsight chooses among: about `sizes` splits of every degree, each with its best kind of step."""
    inputs, evaluated = evaluate_all(problem(study, system, lengths))
    best: dict[tuple[int, int], int] = {}
    for row, choice in enumerate(evaluated.choices):
        key = (choice.leaf.layout.num_gpus, choice.tp)
        if key not in best or evaluated.solution.forecast_s[row] < evaluated.solution.forecast_s[best[key]]:
            best[key] = row
    wanted = {_nearest(best, float(target)) for target in np.linspace(study.gpus / 6, study.gpus * 5 / 6, sizes)}
    rows = [row for (gpus, _), row in sorted(best.items()) if gpus in wanted]
    return [Start(candidate=candidate_of(inputs, evaluated.choices[row], evaluated.solution, row)) for row in rows]


def _nearest(best: dict[tuple[int, int], int], target: float) -> int:
    return min((gpus for gpus, _ in best), key=lambda gpus: abs(gpus - target))


def _throughput_time(evaluated: Evaluated, row: int) -> float:
    """What counts when only the two sides' throughputs are looked at."""
    return max(float(evaluated.solution.trainer_s[row]), float(evaluated.solution.fleet_s[row]))


def _with_fleet(start: Start, system: SystemConfig) -> Start:
    rollout = replace(start.plan.rollout, engines=system.fleet)
    return Start(candidate=replace(start.candidate, plan=replace(start.plan, rollout=rollout)))
