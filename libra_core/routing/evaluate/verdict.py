"""Whether the router beats what it is compared with, set by set."""

from collections.abc import Sequence
from dataclasses import dataclass

from libra_core.routing.build import READS_TREE
from libra_core.routing.evaluate.evaluation import PolicyRow
from libra_core.routing.evaluate.figures import Figures
from libra_core.routing.evaluate.orders import Order

F1_RIVALS = ("mlfq", "embedding")
TOLERANCE = 0.03


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyVerdict:
    """The router against the others on one set in one order."""

    data_set: str
    order: Order
    variant: str
    """The C-MLFQ variant of least regret."""
    regret_s: float
    best_baseline: str
    """The policy of least regret among those that neither read the tree nor know the future."""
    baseline_regret_s: float
    macro_f1: float | None
    """The highest of a variant from the second visit of a prompt on; None when no prompt is visited twice."""
    rivals_f1: dict[str, float]
    """Macro-F1 of majority, classic MLFQ and embedding on the same trajectories."""

    @property
    def lower_regret(self) -> bool:
        return self.regret_s < self.baseline_regret_s

    @property
    def within_tolerance(self) -> bool:
        """Not worse than the best baseline by more than 3 %."""
        return self.regret_s <= self.baseline_regret_s * (1 + TOLERANCE)

    @property
    def higher_f1(self) -> bool | None:
        """None when there is nothing to compare."""
        return None if self.macro_f1 is None else self.macro_f1 > max(self.rivals_f1.values(), default=0.0)


def verdicts(rows: Sequence[PolicyRow]) -> list[PolicyVerdict]:
    """One per data set and order in which both a variant and a baseline were replayed."""
    keys = list(dict.fromkeys((row.data_set, row.order) for row in rows))
    results = [_verdict([row for row in rows if (row.data_set, row.order) == key]) for key in keys]
    return [verdict for verdict in results if verdict is not None]


def _verdict(rows: Sequence[PolicyRow]) -> PolicyVerdict | None:
    variants = [row for row in rows if row.policy in READS_TREE]
    baselines = [row for row in rows if row.policy not in (*READS_TREE, "oracle")]
    if not variants or not baselines:
        return None
    best = min(variants, key=lambda row: row.figures.regret_s)
    rival = min(baselines, key=lambda row: row.figures.regret_s)
    later = [row.later for row in variants if row.later is not None]
    return PolicyVerdict(
        data_set=best.data_set,
        order=best.order,
        variant=best.policy,
        regret_s=best.figures.regret_s,
        best_baseline=rival.policy,
        baseline_regret_s=rival.figures.regret_s,
        macro_f1=max((figures.macro_f1 for figures in later), default=None),
        rivals_f1=_rivals(rows, later),
    )


def _rivals(rows: Sequence[PolicyRow], later: Sequence[Figures]) -> dict[str, float]:
    majority = {"majority": later[0].majority_f1} if later else {}
    return majority | {row.policy: row.later.macro_f1 for row in rows if row.policy in F1_RIVALS and row.later is not None}
