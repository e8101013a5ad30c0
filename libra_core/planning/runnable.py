"""Whether this version can run a plan: what sessions and their configuration refuse, asked before a plan is proposed.

Time and memory are the cost evaluators'. `tests/unit/planning/test_runnable.py` holds it against the configuration's own checks.
"""

from dataclasses import dataclass
from typing import Any, Literal

from libra_core.costs.api import ModelFacts, TrainingShape
from libra_core.types.forecast import Candidate, Mode
from libra_core.types.plan import Plan, TrainLayout

Backend = Literal["cpu", "gpu", "simulated"]
Reasons = tuple[str, ...]
"""Sentences; empty when nothing speaks against it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sessions:
    """What would run the plans of a problem."""

    backend: Backend
    model: ModelFacts

    def against(self, plan: Plan, mode: Mode) -> Reasons:
        """Of `runnable`."""
        return runnable(plan, self.model, self.backend, mode=mode)

    @property
    def model_is_refused(self) -> bool:
        """Then no plan runs, whatever it is, and a plan is a forecast and no more."""
        return self.backend != "simulated" and self.model.is_moe

    def against_layout(self, layout: TrainLayout) -> Reasons:
        """What of these reasons the trainer's layout alone gives."""
        return _against_training(layout, self.model, self.backend)

    def against_degree(self, tp: int) -> Reasons:
        """What of these reasons an engine's degree alone gives."""
        return _against_tp("engines of", tp, self.model, self.backend)


def runnable(plan: Plan, model: ModelFacts, backend: Backend, *, mode: Mode = Mode.ASYNCHRONOUS) -> Reasons:
    """Why no session of this backend starts with the plan; empty when one does."""
    engines = [reason for tp in dict(plan.rollout.engines) for reason in _against_tp("engines of", tp, model, backend)]
    return (
        *_against_training(plan.train, model, backend),
        *engines,
        *_against_mode(mode, backend),
        *_against_hybrids(plan, mode, backend),
    )


def fragment_of(candidate: Candidate, shape: TrainingShape) -> dict[str, Any]:
    """The keys of a configuration that ask for a candidate; `shape` says what its training layout has besides its degrees."""
    train, in_turns = candidate.plan.train, candidate.mode is Mode.COLOCATED
    layout = {
        "tp": train.tp,
        "pp": train.pp,
        "dp": train.dp,
        "distributed_optimizer": shape.distributed_optimizer,
        "sequence_parallel": shape.sequence_parallel and train.tp > 1,
        "recompute": shape.recompute,
    }
    return {
        "rollout": {
            "mode": candidate.mode.value,
            "engines": [{"tp": tp, "count": count} for tp, count in candidate.plan.rollout.engines],
        },
        "training": {
            "layout": layout,
            "micro_batch_tokens": train.micro_batch_tokens,
            "streamed": candidate.streamed and not in_turns,
        },
        "elastic": {"hybrid_replicas": candidate.plan.hybrid_replicas},
    }


def _against_training(layout: TrainLayout, model: ModelFacts, backend: Backend) -> Reasons:
    against = [f"{name} parallelism ({size}) is not trained yet" for name, size in _untrained(layout) if size > 1]
    if backend != "simulated":
        if model.is_moe:
            against.append(f"{model.name} is a mixture of experts, which is not trained yet")
        if model.num_layers % layout.pp:
            against.append(f"pp {layout.pp} does not divide the {model.num_layers} layers of {model.name}")
    return (*against, *_against_tp("training of", layout.tp, model, backend))


def _untrained(layout: TrainLayout) -> tuple[tuple[str, int], ...]:
    return ("context", layout.cp), ("expert", layout.ep)


def _against_tp(whose: str, tp: int, model: ModelFacts, backend: Backend) -> Reasons:
    if backend == "simulated":
        return ()
    sizes = {
        "attention heads": model.num_heads,
        "key-value heads": model.num_kv_heads,
        "vocabulary entries": model.vocab_size,
        "feed-forward units": model.expert_ffn_size if model.is_moe else model.ffn_size,
    }
    wrong = [f"{size} {what}" for what, size in sizes.items() if size % tp]
    return (f"{whose} tp {tp} does not divide the {' and '.join(wrong)} of {model.name}",) if wrong else ()


def _against_mode(mode: Mode, backend: Backend) -> Reasons:
    if mode is Mode.COLOCATED and backend == "gpu":
        return ("colocated mode is not run on GPUs yet: the engines do not release their memory",)
    return ()


def _against_hybrids(plan: Plan, mode: Mode, backend: Backend) -> Reasons:
    replicas, each = plan.hybrid_replicas, plan.train.tp * plan.train.pp
    if not replicas:
        return ()
    degrees = sorted(dict(plan.rollout.engines))
    rules = (
        (backend == "simulated", "hybrid replicas do not change sides in simulated sessions"),
        (mode is Mode.COLOCATED, "hybrid replicas have no use where both sides share all GPUs"),
        (len(degrees) > 1, f"hybrid replicas need engines of one degree, and there are tp {degrees}"),
        (each % degrees[0] > 0, f"hybrid replicas of {each} GPUs are no whole number of engines of tp {degrees[0]}"),
        (
            replicas * each >= plan.rollout.num_gpus,
            f"{replicas} hybrid replicas of {each} GPUs leave no engine that always serves",
        ),
    )
    return tuple(reason for wrong, reason in rules if wrong)
