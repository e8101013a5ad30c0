"""The plan: mode, split, training layout, fleet, slots, kind of step and hybrid replicas chosen together.

Homogeneous fleets of every degree are evaluated for every split; mixed fleets only against a router whose errors are known.
Within 1e-6 of the least iteration time (equal fleets behind a binding trainer) the plan with the fewest restarted GPUs wins, then
the one whose rollout has more slack in steps of 5 %, then the one with fewest engines.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from libra_core.errors import ResourceError
from libra_core.planning.candidates import (
    Choice,
    Leaves,
    SearchInputs,
    candidate_of,
    choices_of,
    options_of,
    search_inputs,
    train_leaves,
)
from libra_core.planning.hybrid import hybrid_replicas, hybrids_against
from libra_core.planning.mixed_search import mixed_candidates
from libra_core.planning.objective import Options, Solution, solve
from libra_core.planning.placement import place
from libra_core.planning.problem import PlanningProblem
from libra_core.planning.relaxation import relaxations
from libra_core.planning.runnable import Sessions
from libra_core.planning.training_tree import Cuts
from libra_core.types.forecast import Candidate, Mode, PlanReport, Relaxation
from libra_core.types.plan import Plan

TIE = 1e-6
_SLACK = 0.05
RUNNER_UPS = 5
_SPLITS_FOR_MIXED = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluated:
    """All homogeneous candidates with their fixed points."""

    choices: Sequence[Choice]
    options: Options
    solution: Solution

    def that_run(self, sessions: Sessions | None) -> list[bool]:
        """By row; what is refused is refused for its degrees and its mode."""
        known: dict[tuple[object, ...], bool] = {}
        runs: list[bool] = []
        for choice in self.choices:
            layout = choice.leaf.layout
            kind = (layout.tp, layout.pp, layout.cp, layout.ep, choice.tp, choice.mode)
            if kind not in known:
                known[kind] = sessions is None or not sessions.against(choice.plan, choice.mode)
            runs.append(known[kind])
        return runs

    def ranked(self, active: Plan | None) -> list[int]:
        """Row numbers, best first; ties as the module says."""
        times = self.solution.forecast_s
        level = np.floor(np.log(times / times.min()) / TIE)
        others = np.maximum(np.maximum(self.solution.fleet_s, self.solution.slowest_s), self.solution.group_s)
        load = np.ceil(others / times / _SLACK)
        keys = [
            (level[row], _moved_gpus(active, choice), load[row], choice.engines, choice.mode is Mode.COLOCATED, row)
            for row, choice in enumerate(self.choices)
        ]
        return [key[-1] for key in sorted(keys)]


def plan_resources(problem: PlanningProblem) -> PlanReport:
    """The best plan with forecast, runner-ups and reasons. Raises `ResourceError` when nothing is feasible, or nothing runs."""
    cuts = Cuts()
    inputs = search_inputs(problem, cuts)
    evaluated = _evaluate(inputs, train_leaves(inputs, cuts), cuts)
    every, runs = _distinct(evaluated, evaluated.ranked(problem.active)), evaluated.that_run(problem.sessions)
    ranked = [row for row in every if runs[row]] or _all_the_same(every, inputs, evaluated)
    homogeneous = [candidate_of(inputs, evaluated.choices[row], evaluated.solution, row) for row in ranked[: RUNNER_UPS + 1]]
    mixed, notes = mixed_candidates(inputs, _splits(evaluated, ranked))
    best, runner_ups = _choose(homogeneous, mixed)
    chosen = [choice for choice, its in zip(evaluated.choices, runs, strict=True) if its == runs[ranked[0]]]
    plan, without = _with_hybrid(best, chosen, inputs)
    first = candidate_of(inputs, evaluated.choices[every[0]], evaluated.solution, every[0])
    return PlanReport(
        best=plan,
        runner_ups=runner_ups,
        relaxations=_relaxed(plan, evaluated.choices[ranked[0]], chosen, inputs),
        placement=place(problem.cluster, plan.plan, shared=plan.mode is Mode.COLOCATED),
        pruned=cuts.pruned(),
        notes=(*_refused(first, best, problem.sessions), *without, *notes),
        num_candidates=len(evaluated.choices) + len(mixed),
        against=problem.sessions.against(plan.plan, plan.mode) if problem.sessions else (),
    )


def evaluate_all(problem: PlanningProblem) -> tuple[SearchInputs, Evaluated]:
    """Every homogeneous candidate with its fixed point; for studies and checks."""
    cuts = Cuts()
    inputs = search_inputs(problem, cuts)
    return inputs, _evaluate(inputs, train_leaves(inputs, cuts), cuts)


def _evaluate(inputs: SearchInputs, leaves: Leaves, cuts: Cuts) -> Evaluated:
    choices = choices_of(inputs, leaves.run) + choices_of(inputs, leaves.refused)
    if not choices:
        raise ResourceError(_why_nothing(inputs, leaves, cuts))
    options = options_of(choices)
    return Evaluated(choices=choices, options=options, solution=solve(options, inputs.curves, inputs.problem.regime))


def _why_nothing(inputs: SearchInputs, leaves: Leaves, cuts: Cuts) -> str:
    total = inputs.problem.cluster.num_gpus
    if not inputs.curves:
        missing = f"no rollout engine fits ({cuts.examples.get('engine fits', 'no degree is allowed')})"
    elif not leaves:
        rules = cuts.pruned()
        reason = cuts.examples.get("memory") or (rules[0].example if rules else "no degree is allowed")
        missing = f"no training layout fits ({reason})"
    else:
        least, tp = leaves.least_gpus, min(inputs.curves)
        missing = f"the smallest training layout needs {least} GPUs and leaves no engine of tp {tp} its place"
    return f"no plan for {total} GPUs: {missing}; use more GPUs or a smaller model, or shorten rollout.max_context_tokens"


def _distinct(evaluated: Evaluated, ranked: Sequence[int]) -> list[int]:
    """The best kind of step of every split and fleet."""
    seen: set[tuple[object, ...]] = set()
    kept: list[int] = []
    for row in ranked:
        choice = evaluated.choices[row]
        key = (choice.mode, choice.leaf.layout, choice.tp, choice.engines)
        if key not in seen:
            seen.add(key)
            kept.append(row)
    return kept


def _splits(evaluated: Evaluated, ranked: Sequence[int]) -> list[Choice]:
    """The best asynchronous choice of each of the best training sizes."""
    chosen: dict[int, Choice] = {}
    for row in ranked:
        choice = evaluated.choices[row]
        if choice.mode is Mode.ASYNCHRONOUS and len(chosen) < _SPLITS_FOR_MIXED:
            chosen.setdefault(choice.leaf.layout.num_gpus, choice)
    return list(chosen.values())


def _choose(homogeneous: Sequence[Candidate], mixed: Sequence[Candidate]) -> tuple[Candidate, tuple[Candidate, ...]]:
    """A mixed fleet must be faster by more than a tie; among homogeneous ones the order is already settled."""
    faster = [item for item in mixed if item.forecast.t_iter_s < homogeneous[0].forecast.t_iter_s * (1 - TIE)]
    best = min(faster, key=lambda item: item.forecast.t_iter_s, default=homogeneous[0])
    others = [item for item in (*homogeneous, *mixed) if item is not best]
    return best, tuple(sorted(others, key=lambda item: item.forecast.t_iter_s)[:RUNNER_UPS])


def _with_hybrid(best: Candidate, choices: Sequence[Choice], inputs: SearchInputs) -> tuple[Candidate, tuple[str, ...]]:
    """With as many hybrid replicas as it would want, of those that can be run; and what speaks against the others."""
    if best.mode is Mode.COLOCATED:
        return best, ()
    wanted = hybrid_replicas(best, choices, inputs)
    against = hybrids_against(best, wanted, inputs)
    plan = replace(best.plan, hybrid_replicas=0 if against else wanted)
    notes = tuple(f"{wanted} hybrid replicas would be of use, and cannot be run: {reason}" for reason in against)
    return replace(best, plan=plan), notes


def _all_the_same(every: list[int], inputs: SearchInputs, evaluated: Evaluated) -> list[int]:
    """Where no plan runs: all of them for a model that is only forecast. Raises `ResourceError` for another."""
    sessions, first = inputs.problem.sessions, evaluated.choices[every[0]]
    if sessions is None or sessions.model_is_refused:
        return every
    because = "; ".join(sessions.against(first.plan, first.mode))
    raise ResourceError(
        f"no plan that this version runs fits {inputs.problem.cluster.num_gpus} GPUs; the best of those that it does not run "
        f"would take {float(evaluated.solution.forecast_s[every[0]]):.1f} s ({because}); use more GPUs or a smaller model"
    )


def _refused(first: Candidate, best: Candidate, sessions: Sessions | None) -> tuple[str, ...]:
    """A faster plan that no session runs is told, and is not the answer."""
    against = sessions.against(first.plan, first.mode) if sessions else ()
    if not against:
        return ()
    if first.plan == best.plan and first.mode is best.mode:
        return ("no plan that this version runs was found; this one it does not run: " + "; ".join(against),)
    layout, ((tp, engines),) = first.plan.train, first.plan.rollout.engines
    degrees = " ".join(f"{name} {size}" for name, size in (("cp", layout.cp), ("ep", layout.ep)) if size > 1)
    words = f"tp {layout.tp} {degrees + ' ' if degrees else ''}pp {layout.pp} dp {layout.dp} + {engines} x tp {tp}, {first.mode}"
    times = f"{first.forecast.t_iter_s:.1f} s instead of {best.forecast.t_iter_s:.1f} s"
    return (f"{words} would take {times}, and this version does not run it: " + "; ".join(against),)


def _relaxed(best: Candidate, choice: Choice, choices: Sequence[Choice], inputs: SearchInputs) -> tuple[Relaxation, ...]:
    if len(best.plan.rollout.engines) > 1:
        return ()
    return relaxations(best.forecast.terms.binding, choice, choices, inputs)


def _moved_gpus(active: Plan | None, choice: Choice) -> int:
    """GPUs on which a process has to be started to get from the active plan to the choice."""
    if active is None:
        return 0
    running = dict(active.rollout.engines)
    started = max(0, choice.engines - running.get(choice.tp, 0)) * choice.tp
    old, new = active.train, choice.leaf.layout
    same_world = (old.tp, old.pp, old.cp, old.ep, old.dp) == (new.tp, new.pp, new.cp, new.ep, new.dp)
    return started + (0 if same_world else new.num_gpus)
