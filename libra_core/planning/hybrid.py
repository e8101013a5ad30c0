"""How many replicas should be able to change sides: what the best split moves by when training work drifts against rollout."""

from collections.abc import Sequence

import numpy as np

from libra_core.planning.candidates import Bench, Choice
from libra_core.planning.objective import Options, solve
from libra_core.types.forecast import Candidate, Mode


def hybrid_replicas(best: Candidate, choices: Sequence[Choice], options: Options, bench: Bench) -> int:
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
        and (choice.leaf.layout.tp, choice.leaf.layout.pp, choice.leaf.layout.cp) == (train.tp, train.pp, train.cp)
        and choice.leaf.layout.num_gpus >= train.num_gpus
    ]
    if not alike:
        return 0
    rows = options.rows(np.array(alike, dtype=np.intp))
    drifted = Options(
        tp=rows.tp,
        engines=rows.engines,
        train_s=rows.train_s * bench.problem.drift,
        train_fixed_s=rows.train_fixed_s,
        publication_s=rows.publication_s,
        streamed=rows.streamed,
        colocated=rows.colocated,
    )
    times = solve(drifted, bench.curves, bench.problem.regime).forecast_s
    wanted = choices[alike[int(np.argmin(times))]].leaf.layout.num_gpus
    room = best.plan.rollout.num_gpus - max(degrees)
    return max(0, min(wanted - train.num_gpus, room)) // train.replica_gpus
