"""The engine's half of `libra verify numerics`: its log-probs against the trainer's, and abort and resume, at TP1 and TP2."""

import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from libra_core.config.training import TrainingConfig
from libra_core.engines.verification.engine_model import SMALL, build_engine_model
from libra_core.engines.verification.remote import RemoteObject
from libra_core.engines.verification.worlds import WorldPool, spec_of
from libra_core.engines.vllm.spec import EngineSpec, process_environment
from libra_core.engines.weight_source import FileWeights
from libra_core.errors import NumericsError
from libra_core.types.ids import EngineId
from libra_core.types.trajectory import FinishReason, GeneratedTurn, GenerationRequest

Tokens = tuple[int, ...]

_ENGINE = "libra_core.engines.vllm.engine:VllmEngine"
_DEGREES = (1, 2)
_PROMPTS: tuple[Tokens, ...] = tuple(
    tuple((step * index + 11) % SMALL.vocab_size for index in range(40 + step)) for step in (7, 19, 37, 61)
)
_SAMPLED_TOKENS = 48
_GREEDY_TOKENS = 360
_ABORT_AFTER_TOKENS = 24
_MIN_DISTINCT_TOKENS = 12
"""A model that repeats itself would pass any test of identity."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scored:
    """A sequence with the engine's log-probs of its tokens from `start` on."""

    token_ids: Tokens
    start: int
    logprobs: tuple[float, ...]


@dataclass(slots=True)
class Samples:
    """What one engine produced, to be scored by the trainer of the same weights."""

    before: list[Scored] = field(default_factory=list)
    published: list[Scored] = field(default_factory=list)
    identical: bool = True
    interrupted: GeneratedTurn | None = None
    """The aborted first half of the greedy turn."""
    undisturbed: GeneratedTurn | None = None


def engine_checks(progress: Callable[[str], None]) -> dict[str, Any]:
    """Largest differences over both degrees and both sets of weights, and the claim that aborts lose nothing; float32 on CPU."""
    with tempfile.TemporaryDirectory(prefix="libra-numerics-") as temporary, WorldPool(1) as pool:
        root = Path(temporary)
        first, second = (build_engine_model(root / f"model{seed}", seed=seed) for seed in (1, 2))
        weights = root / "published.safetensors"
        pool.run(score_all, _trainer(second), [], str(weights))
        samples: dict[int, Samples] = {}
        for tp in _DEGREES:
            progress(f"engine TP{tp}: sampling, abort and resume, publication")
            samples[tp] = _run_engine(tp, first, weights, samples.get(_DEGREES[0]))
        progress("engine against trainer: log-probs")
        errors = {
            f"tp{tp}{suffix}": _error(pool, folder, scored)
            for tp, sample in samples.items()
            for suffix, folder, scored in (("", first, sample.before), ("_published", second, sample.published))
        }
    identical = {f"tp{tp}": sample.identical for tp, sample in samples.items()}
    return {
        "engine_vs_trainer_logprob": max(errors.values()),
        "engine_vs_trainer_logprob_by_tp": errors,
        "abort_resume_greedy_identical": all(identical.values()),
        "abort_resume_greedy_identical_by_tp": identical,
    }


def score_all(spec: Any, sequences: list[Tokens], path: str) -> list[tuple[float, ...]]:
    """In the trainer's process: export the weights, score every sequence."""
    from libra_core.engines.megatron.trainer import MegatronTrainer

    trainer = MegatronTrainer(spec)
    try:
        trainer.export_file(path)
        return [trainer.score_tokens(token_ids) for token_ids in sequences]
    finally:
        trainer.close()


def _run_engine(tp: int, folder: Path, weights: Path, elsewhere: Samples | None) -> Samples:
    spec = EngineSpec(engine_id=EngineId(f"tp{tp}"), model_path=str(folder), tp=tp, kv_cache_mib=64, max_num_seqs=8)
    log = folder.parent / f"engine-tp{tp}.log"
    with RemoteObject(
        "libra_core.engines.vllm.engine:VllmEngine", spec, environment=process_environment(spec), log=log
    ) as engine:
        engine.call("start", timeout_s=spec.start_deadline_s)
        samples = Samples(before=_sample(engine))
        _abort_and_resume(engine, samples)
        if elsewhere is not None:
            samples.identical &= _resumes(engine, elsewhere)
        engine.call("update_weights", FileWeights(path=str(weights)), 1, in_flight="keep", recompute_kv=True)
        samples.published = _sample(engine)
    return samples


def _sample(engine: RemoteObject) -> list[Scored]:
    """Sampled turns, all at once, and one prompt scored as the canary is."""
    futures = [engine.submit("generate", _request(f"sample-{index}", prompt)) for index, prompt in enumerate(_PROMPTS)]
    turns = [future.result(120.0) for future in futures]
    sampled = [
        Scored(token_ids=prompt + turn.token_ids, start=len(prompt), logprobs=turn.logprobs)
        for prompt, turn in zip(_PROMPTS, turns, strict=True)
    ]
    return [*sampled, Scored(token_ids=_PROMPTS[0], start=0, logprobs=engine.call("score", _PROMPTS[0]))]


def _abort_and_resume(engine: RemoteObject, samples: Samples) -> None:
    samples.undisturbed = engine.call("generate", _greedy("undisturbed", _PROMPTS[0], _GREEDY_TOKENS))
    if len(set(samples.undisturbed.token_ids)) < _MIN_DISTINCT_TOKENS:
        raise NumericsError(
            f"the check's greedy turn has only {len(set(samples.undisturbed.token_ids))} distinct tokens, fewer than "
            f"{_MIN_DISTINCT_TOKENS}: it would prove nothing; change the seed of the model"
        )
    running = engine.submit("generate", _greedy("interrupted", _PROMPTS[0], _GREEDY_TOKENS))
    while not running.done():
        partial = engine.call("partial", "interrupted")
        if partial is not None and len(partial.token_ids) >= _ABORT_AFTER_TOKENS:
            engine.call("abort", ["interrupted"])
            break
    samples.interrupted = running.result(60.0)
    samples.identical &= samples.interrupted.finish_reason is FinishReason.ABORT
    samples.identical &= _resumes(engine, samples)


def _resumes(engine: RemoteObject, samples: Samples) -> bool:
    """Whether this engine ends the interrupted turn as it would have ended undisturbed."""
    assert samples.interrupted is not None
    assert samples.undisturbed is not None
    begun = samples.interrupted.token_ids
    rest = engine.call("generate", _greedy("resumed", _PROMPTS[0] + begun, _GREEDY_TOKENS - len(begun)))
    return begun + rest.token_ids == samples.undisturbed.token_ids


def _error(pool: WorldPool, folder: Path, scored: list[Scored]) -> float:
    sequences = [sequence.token_ids for sequence in scored]
    expected = pool.run(score_all, _trainer(folder), sequences, str(folder / "again" / "model.safetensors"))[0]
    return max(
        abs(got - wanted)
        for sequence, row in zip(scored, expected, strict=True)
        for got, wanted in zip(sequence.logprobs, row[sequence.start :], strict=True)
    )


def _trainer(folder: Path) -> Any:
    return spec_of(folder, training=TrainingConfig())


def _request(name: str, prompt: Tokens) -> GenerationRequest:
    return GenerationRequest(
        request_id=name, token_ids=prompt, max_new_tokens=_SAMPLED_TOKENS, temperature=1.0, stop_token_ids=()
    )


def _greedy(name: str, prompt: Tokens, new_tokens: int) -> GenerationRequest:
    return GenerationRequest(request_id=name, token_ids=prompt, max_new_tokens=new_tokens, temperature=0.0, stop_token_ids=())
