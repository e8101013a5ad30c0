"""How many replicas should be able to change sides: what the best split moves by when training work drifts against rollout."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from libra_core.planning.candidates import Choice, SearchInputs, options_of
from libra_core.planning.objective import solve
from libra_core.planning.training_tree import shape_in
from libra_core.types.forecast import Candidate, Mode
from libra_core.types.plan import TrainLayout


def hybrids_against(best: Candidate, wanted: int, inputs: SearchInputs) -> tuple[str, ...]:
    """Why sessions do not run the plan with so many hybrid replicas, memory included; empty when they do.

    A replica trains with a whole optimizer on GPUs whose engine sleeps or has ended.
    """
    sessions, problem = inputs.problem.sessions, inputs.problem
    if sessions is None or not wanted:
        return ()
    against = sessions.against(replace(best.plan, hybrid_replicas=wanted), best.mode)
    alone = replace(shape_in(problem.train_shape, best.plan.train), dp=1, distributed_optimizer=False)
    share = best.plan.train.dp + wanted
    load = replace(inputs.load, tokens=inputs.load.tokens / share, squared_tokens=inputs.load.squared_tokens / share)
    fit = problem.costs.trainer.estimate(alone, load).fit
    return against if fit.fits else (*against, f"a replica of its own: {fit.reason}")


def hybrid_replicas(best: Candidate, choices: Sequence[Choice], inputs: SearchInputs) -> int:
    """Replicas of the plan's own shape and engine degrees that training would want if its work grew by `drift`.

    They serve rollouts until then. The engines that remain keep at least one.
    """
    train, degrees = best.plan.train, {tp for tp, _ in best.plan.rollout.engines}
    alike = [
        row
        for row, choice in enumerate(choices)
        if choice.mode is Mode.ASYNCHRONOUS
        and choice.streamed == best.streamed
        and choice.tp in degrees
        and _shape(choice.leaf.layout) == _shape(train)
        and choice.leaf.layout.num_gpus >= train.num_gpus
    ]
    if not alike:
        return 0
    rows = options_of([choices[row] for row in alike])
    drifted = replace(rows, train_s=rows.train_s * inputs.problem.drift)
    times = solve(drifted, inputs.curves, inputs.problem.regime).forecast_s
    wanted = choices[alike[int(np.argmin(times))]].leaf.layout.num_gpus
    room = best.plan.rollout.num_gpus - max(degrees)
    return max(0, min(wanted - train.num_gpus, room)) // train.replica_gpus


def _shape(layout: TrainLayout) -> tuple[int, ...]:
    return layout.tp, layout.pp, layout.cp, layout.ep
