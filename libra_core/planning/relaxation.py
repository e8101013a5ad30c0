"""What would relax the term that sets the iteration time, each change computed by the same objective."""

from collections.abc import Sequence
from dataclasses import replace

from libra_core.planning.candidates import Choice, SearchInputs, options_of
from libra_core.planning.objective import solve
from libra_core.planning.problem import Regime
from libra_core.types.forecast import Mode, Relaxation, Term

_HELPS = 0.999


def relaxations(binding: Term, best: Choice, choices: Sequence[Choice], inputs: SearchInputs) -> tuple[Relaxation, ...]:
    """The changes of the binding term that help, most helpful first; GPUs named here come on top of the cluster's."""
    regime = inputs.problem.regime
    match binding:
        case Term.TRAINER:
            relaxed = _more_training(best, choices, inputs)
        case Term.FLEET:
            relaxed = _more_engines(best, inputs)
        case Term.SLOWEST_TRAJECTORY:
            relaxed = [*_lower_latency(best, inputs), *_looser(best, inputs, slack=best.mode is Mode.ASYNCHRONOUS)]
        case Term.GROUP_LATENCY:
            looser = replace(regime, staleness=regime.staleness + 1)
            relaxed = [_relaxed(f"staleness η = {looser.staleness}", best, inputs, looser), *_lower_latency(best, inputs)]
    now = _relaxed("", best, inputs, regime).t_iter_s
    return tuple(sorted((item for item in relaxed if item.t_iter_s < now * _HELPS), key=lambda item: item.t_iter_s))


def _more_training(best: Choice, choices: Sequence[Choice], inputs: SearchInputs) -> list[Relaxation]:
    size = best.leaf.layout.num_gpus
    larger = sorted(
        {item.leaf.layout.num_gpus: item.leaf for item in choices if item.leaf.layout.num_gpus > size}.items(),
        key=lambda item: item[0],
    )
    faster = [(gpus, leaf) for gpus, leaf in larger if leaf.t_train_s < best.leaf.t_train_s]
    if not faster:
        return []
    gpus, leaf = faster[0]
    change = f"{gpus - size} more training GPUs"
    return [_relaxed(change, replace(best, leaf=leaf), inputs, inputs.problem.regime)]


def _more_engines(best: Choice, inputs: SearchInputs) -> list[Relaxation]:
    more = replace(best, engines=best.engines + 1)
    relaxed = [_relaxed(f"one more engine of tp {best.tp}", more, inputs, inputs.problem.regime)]
    for tp in inputs.curves:
        engines = best.engines * best.tp // tp
        if tp > best.tp and engines:
            larger = replace(best, tp=tp, engines=engines)
            relaxed.append(_relaxed(f"{engines} engines of tp {tp} instead", larger, inputs, inputs.problem.regime))
    return relaxed


def _lower_latency(best: Choice, inputs: SearchInputs) -> list[Relaxation]:
    relaxed: list[Relaxation] = []
    for tp in inputs.curves:
        engines = best.engines * best.tp // tp
        if tp > best.tp and engines:
            larger = replace(best, tp=tp, engines=engines)
            relaxed.append(_relaxed(f"{engines} engines of tp {tp} instead", larger, inputs, inputs.problem.regime))
    if not best.streamed and best.mode is Mode.ASYNCHRONOUS:
        relaxed.append(_relaxed("a streamed step", replace(best, streamed=True), inputs, inputs.problem.regime))
    return relaxed


def _looser(best: Choice, inputs: SearchInputs, *, slack: bool) -> list[Relaxation]:
    regime = inputs.problem.regime
    older = replace(regime, staleness=regime.staleness + 1)
    relaxed = [_relaxed(f"staleness η = {older.staleness}", best, inputs, older)]
    if slack:
        later = replace(regime, age_slack=regime.age_slack + 1)
        relaxed.append(_relaxed(f"age slack X = {later.age_slack}", best, inputs, later))
    return relaxed


def _relaxed(change: str, choice: Choice, inputs: SearchInputs, regime: Regime) -> Relaxation:
    solution = solve(options_of([choice]), inputs.curves, regime)
    return Relaxation(change=change, t_iter_s=float(solution.forecast_s[0]))
