"""The best training layout for a number of GPUs: TP, EP, CP, PP, DP, micro-batch, pruned on the way down.

Every cut branch leaves the rule and a sentence. A leaf is a layout that fits; the best leaf is the fastest one.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace

from libra_core.costs.api import TrainEstimate, TrainingLoad, TrainingShape
from libra_core.planning.problem import PlanningProblem
from libra_core.types.forecast import Pruned
from libra_core.types.plan import TrainLayout

_MOST_BUBBLE = 0.3
_MOST_TP_SHARE = 0.5
_MOST_STAGES = 16
_CONTEXT_DEGREES = (1, 2, 4, 8)


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainLeaf:
    layout: TrainLayout
    t_train_s: float
    fixed_s: float
    """Part that comes once a step: exposed gradient communication and the optimizer."""
    bytes_per_gpu: float


@dataclass(slots=True)
class Cuts:
    """Counts what each rule cut; keeps the first sentence. Owned by one search."""

    counts: dict[str, int] = field(default_factory=dict[str, int])
    examples: dict[str, str] = field(default_factory=dict[str, str])

    def add(self, rule: str, branch: str, why: str) -> None:
        self.counts[rule] = self.counts.get(rule, 0) + 1
        if rule not in self.examples:
            self.examples[rule] = f"{branch}: {why}"

    def pruned(self) -> tuple[Pruned, ...]:
        """Most frequent first."""
        rules = sorted(self.counts, key=lambda rule: (-self.counts[rule], rule))
        return tuple(Pruned(rule=rule, count=self.counts[rule], example=self.examples[rule]) for rule in rules)


def best_leaf(problem: PlanningProblem, num_gpus: int, load: TrainingLoad, cuts: Cuts) -> TrainLeaf | None:
    """The fastest layout on exactly `num_gpus` GPUs; a tie goes to less model parallelism. None when nothing fits."""
    return _fastest(leaves(problem, num_gpus, load, cuts))


def best_leaves(
    problem: PlanningProblem, num_gpus: int, load: TrainingLoad, cuts: Cuts
) -> tuple[TrainLeaf | None, TrainLeaf | None]:
    """As `best_leaf`: the fastest that sessions run, and a faster one that they do not, where there is one."""
    candidates, sessions = list(leaves(problem, num_gpus, load, cuts)), problem.sessions
    best = _fastest(candidates)
    if best is None or sessions is None or not sessions.against_layout(best.layout):
        return best, None
    return _fastest(leaf for leaf in candidates if not sessions.against_layout(leaf.layout)), best


def _fastest(candidates: Iterable[TrainLeaf]) -> TrainLeaf | None:
    best: TrainLeaf | None = None
    for leaf in candidates:
        if best is None or leaf.t_train_s < best.t_train_s * (1 - 1e-9):
            best = leaf
    return best


def leaves(problem: PlanningProblem, num_gpus: int, load: TrainingLoad, cuts: Cuts) -> Iterator[TrainLeaf]:
    """Every layout on exactly `num_gpus` GPUs that survives the pruning, least model parallelism first.

    Context parallelism is tried only where nothing fits without it: its exchange is not in the cost evaluator, so it would look
    free.
    """
    for cp in _CONTEXT_DEGREES:
        if num_gpus % cp:
            continue
        candidates = [leaf for tp in problem.train_degrees for leaf in _below_tp(problem, num_gpus, (tp, cp), load, cuts)]
        yield from candidates
        if candidates:
            break


def _below_tp(
    problem: PlanningProblem, num_gpus: int, degrees: tuple[int, int], load: TrainingLoad, cuts: Cuts
) -> Iterator[TrainLeaf]:
    tp, cp = degrees
    if num_gpus % (tp * cp):
        cuts.add("tp divides the GPUs", f"{num_gpus} GPUs, tp {tp}", f"{num_gpus} is not a multiple of {tp * cp}")
        return
    if problem.cluster.groups_of(tp) * tp < num_gpus:
        cuts.add("tp inside a node", f"{num_gpus} GPUs, tp {tp}", "that many groups would have to span nodes")
        return
    rest = num_gpus // tp // cp
    for ep in _expert_degrees(problem.model.num_experts, num_gpus):
        for pp in _stage_counts(problem, rest, tp, cuts):
            shape = replace(problem.train_shape, tp=tp, ep=ep, pp=pp, cp=cp, dp=rest // pp)
            yield from _micro_batches(problem, shape, load, cuts)


def _expert_degrees(num_experts: int, num_gpus: int) -> list[int]:
    if num_experts == 0:
        return [1]
    return [ep for ep in (1, 2, 4, 8, 16, 32) if num_experts % ep == 0 and num_gpus % ep == 0]


def _stage_counts(problem: PlanningProblem, rest: int, tp: int, cuts: Cuts) -> Iterator[int]:
    for pp in range(1, min(_MOST_STAGES, rest, problem.model.num_layers) + 1):
        if rest % pp:
            continue
        if problem.model.num_layers % pp and not problem.train_shape.uneven_stages:
            cuts.add("pp divides the layers", f"tp {tp} pp {pp}", f"{problem.model.num_layers} layers over {pp} stages")
            continue
        yield pp


def _micro_batches(problem: PlanningProblem, shape: TrainingShape, load: TrainingLoad, cuts: Cuts) -> Iterator[TrainLeaf]:
    if load.num_sequences < shape.dp:
        cuts.add("a trajectory per replica", _name(shape), f"{load.num_sequences} trajectories for {shape.dp} replicas")
        return
    load = of_fullest_replica(load, shape.dp)
    fit = problem.costs.trainer.shape_fit(shape)
    if not fit.fits:
        cuts.add("model and topology", _name(shape), fit.reason)
        return
    share = load.tokens / shape.dp
    for number, tokens in enumerate(problem.micro_batch_tokens):
        if number and tokens > 2 * share:
            break  # the whole share already travels in one micro-batch
        sized = replace(shape, micro_batch_tokens=tokens)
        estimate = problem.costs.trainer.estimate(sized, load)
        rule, why = _rule_against(estimate)
        if rule:
            cuts.add(rule, f"{_name(shape)} micro-batch {tokens}", why)
            if rule == "memory":
                return  # a larger micro-batch needs more
            continue
        yield _leaf(sized, estimate)


def of_fullest_replica(load: TrainingLoad, dp: int) -> TrainingLoad:
    """The trainer deals whole trajectories out, to the replica with the least tokens; where dp does not divide their number, the
    step takes as long as the replicas that have one more."""
    uneven = -(-load.num_sequences // dp) * dp / load.num_sequences
    return replace(load, tokens=load.tokens * uneven, squared_tokens=load.squared_tokens * uneven)


def _rule_against(estimate: TrainEstimate) -> tuple[str, str]:
    if not estimate.fit.fits:
        return "memory", estimate.fit.reason
    if estimate.bubble_share > _MOST_BUBBLE:
        return "pipeline bubble", f"bubble of {estimate.bubble_share:.0%}, at most {_MOST_BUBBLE:.0%}"
    if estimate.tp_share > _MOST_TP_SHARE:
        return "tp communication", f"{estimate.tp_share:.0%} of the step, at most {_MOST_TP_SHARE:.0%}"
    return "", ""


def _leaf(shape: TrainingShape, estimate: TrainEstimate) -> TrainLeaf:
    layout = TrainLayout(
        tp=shape.tp, pp=shape.pp, dp=shape.dp, cp=shape.cp, ep=shape.ep, micro_batch_tokens=shape.micro_batch_tokens
    )
    return TrainLeaf(
        layout=layout,
        t_train_s=estimate.t_train_s,
        fixed_s=estimate.parts.optimizer_s + estimate.parts.dp_exposed_s,
        bytes_per_gpu=estimate.memory.total_bytes,
    )


def shape_in(base: TrainingShape, layout: TrainLayout) -> TrainingShape:
    """The evaluator's view of a layout, with everything but its degrees as in `base`."""
    degrees = {"tp": layout.tp, "pp": layout.pp, "dp": layout.dp, "cp": layout.cp, "ep": layout.ep}
    rest = {name: getattr(base, name) for name in ("recompute", "distributed_optimizer", "sequence_parallel", "uneven_stages")}
    return TrainingShape(**degrees, **rest, micro_batch_tokens=layout.micro_batch_tokens)


def shape_of(layout: TrainLayout) -> TrainingShape:
    """As `shape_in`, with nothing besides the degrees."""
    return shape_in(TrainingShape(), layout)


def _name(shape: TrainingShape) -> str:
    parts = {"tp": shape.tp, "ep": shape.ep, "cp": shape.cp, "pp": shape.pp, "dp": shape.dp}
    return " ".join(f"{name} {value}" for name, value in parts.items() if value > 1 or name in {"tp", "dp"})
