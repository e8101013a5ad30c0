"""What would relax the term that sets the iteration time, each change computed by the same objective."""

from collections.abc import Sequence
from dataclasses import replace

from libra_core.planning.candidates import Bench, Choice, options_of
from libra_core.planning.objective import solve
from libra_core.planning.problem import Regime
from libra_core.types.forecast import Mode, Relaxation, Term

_HELPS = 0.999


def relaxations(binding: Term, best: Choice, choices: Sequence[Choice], bench: Bench) -> tuple[Relaxation, ...]:
    """The changes of the binding term that help, most helpful first; GPUs named here come on top of the cluster's."""
    regime = bench.problem.regime
    match binding:
        case Term.TRAINER:
            found = _more_training(best, choices, bench)
        case Term.FLEET:
            found = _more_engines(best, bench)
        case Term.SLOWEST_TRAJECTORY:
            found = [*_lower_latency(best, bench), *_looser(best, bench, slack=best.mode is Mode.ASYNCHRONOUS)]
        case Term.GROUP_LATENCY:
            looser = replace(regime, staleness=regime.staleness + 1)
            found = [_relaxed(f"staleness η = {looser.staleness}", best, bench, looser), *_lower_latency(best, bench)]
    now = _relaxed("", best, bench, regime).t_iter_s
    return tuple(sorted((item for item in found if item.t_iter_s < now * _HELPS), key=lambda item: item.t_iter_s))


def _more_training(best: Choice, choices: Sequence[Choice], bench: Bench) -> list[Relaxation]:
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
    return [_relaxed(change, replace(best, leaf=leaf), bench, bench.problem.regime)]


def _more_engines(best: Choice, bench: Bench) -> list[Relaxation]:
    more = replace(best, engines=best.engines + 1)
    found = [_relaxed(f"one more engine of tp {best.tp}", more, bench, bench.problem.regime)]
    for tp in bench.curves:
        engines = best.engines * best.tp // tp
        if tp > best.tp and engines:
            larger = replace(best, tp=tp, engines=engines)
            found.append(_relaxed(f"{engines} engines of tp {tp} instead", larger, bench, bench.problem.regime))
    return found


def _lower_latency(best: Choice, bench: Bench) -> list[Relaxation]:
    found: list[Relaxation] = []
    for tp in bench.curves:
        engines = best.engines * best.tp // tp
        if tp > best.tp and engines:
            larger = replace(best, tp=tp, engines=engines)
            found.append(_relaxed(f"{engines} engines of tp {tp} instead", larger, bench, bench.problem.regime))
    if not best.streamed and best.mode is Mode.ASYNCHRONOUS:
        found.append(_relaxed("a streamed step", replace(best, streamed=True), bench, bench.problem.regime))
    return found


def _looser(best: Choice, bench: Bench, *, slack: bool) -> list[Relaxation]:
    regime = bench.problem.regime
    older = replace(regime, staleness=regime.staleness + 1)
    found = [_relaxed(f"staleness η = {older.staleness}", best, bench, older)]
    if slack:
        later = replace(regime, age_slack=regime.age_slack + 1)
        found.append(_relaxed(f"age slack X = {later.age_slack}", best, bench, later))
    return found


def _relaxed(change: str, choice: Choice, bench: Bench, regime: Regime) -> Relaxation:
    solution = solve(options_of([choice]), bench.curves, regime)
    return Relaxation(change=change, t_iter_s=float(solution.forecast_s[0]))
