"""The trainer's half of `libra verify numerics`: log-probs, round trip, gradients and resume against independent computations."""

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from libra_core.config.training import LayoutConfig, LossConfig, TrainingConfig
from libra_core.engines.verification.models import Family, build_model_folder, training_batch
from libra_core.engines.verification.reference import hf_gradients, hf_logprobs, hf_model, sampled_by
from libra_core.engines.verification.worlds import WorldPool, layout, play, spec_of
from libra_core.types.batch import TrainingBatch

BOUNDS = {"trainer_vs_hf_logprob": 5e-6, "roundtrip_hf": 0.0, "grad_vs_single": 1e-6}
LAYOUTS: dict[str, LayoutConfig] = {
    "TP2": layout(tp=2),
    "PP2": layout(pp=2),
    "DP2": layout(dp=2),
    "TP2xPP2": layout(tp=2, pp=2),
    "TP2xDP2": layout(tp=2, dp=2),
}
_MODELS: tuple[tuple[Family, bool], ...] = (("qwen3", True), ("qwen3", False), ("qwen2", True), ("llama", False))
_LOSS = LossConfig(entropy_coefficient=0.01)
_TEMPERATURE = 0.8
"""Not 1, so that a temperature applied on one side only would show."""
_BUDGET_TOKENS = 64
"""Small enough that ranks have several micro-batches each, and not equally many."""


def trainer_checks(progress: Callable[[str], None]) -> dict[str, Any]:
    """Figures of the trainer, from four processes of its own; raises `NumericsError` when a world fails to run at all."""
    with WorldPool(4) as pool:
        return trainer_figures(pool, progress)


def trainer_figures(pool: WorldPool, progress: Callable[[str], None]) -> dict[str, Any]:
    """The figures by the names of `BOUNDS`, and whether a resumed run ends with the same bits."""
    with tempfile.TemporaryDirectory(prefix="libra-numerics-") as temporary:
        root = Path(temporary)
        progress("building small random models")
        folders = [build_model_folder(root / f"{family}-{tied}", family=family, tied=tied) for family, tied in _MODELS]
        progress("trainer against Hugging Face: log-probs and round trip")
        scores = [_score_errors(pool, folder) for folder in folders]
        batch = sampled_by(folders[0], training_batch(step=0), temperature=_TEMPERATURE)
        progress("gradients against one process: " + ", ".join(LAYOUTS))
        gradients, trips = _layout_errors(pool, folders[0], batch)
        progress("checkpoint and resume")
        resumed = [resumes_identically(pool, folders[0], shape) for shape in _RESUMED]
    return {
        "trainer_vs_hf_logprob": max(score for score, _ in scores),
        "roundtrip_hf": max([trip for _, trip in scores] + trips),
        "grad_vs_single": gradients,
        "checkpoint_resume_identical": all(resumed),
    }


_RESUMED = (layout(tp=2), layout(dp=2, distributed_optimizer=True))


def resumes_identically(pool: WorldPool, folder: Path, shape: LayoutConfig) -> bool:
    """Two steps, save, two more steps; then load into a fresh world and repeat the last two: the same weights, bit for bit."""
    batches = [training_batch(step=step) for step in range(4)]
    spec = spec_of(folder, training=_training(shape))
    with tempfile.TemporaryDirectory(prefix="libra-resume-") as temporary:
        checkpoint = f"{temporary}/checkpoint"
        first, second = ([("update", batch) for batch in half] for half in (batches[:2], batches[2:]))
        straight = pool.run(play, spec, *first, ("save", checkpoint), *second, ("digest",))
        resumed = pool.run(play, spec, ("load", checkpoint), *second, ("digest",))
    digests = {answers[-1] for answers in (*straight, *resumed)}
    return len(digests) == 1


def _score_errors(pool: WorldPool, folder: Path) -> tuple[float, float]:
    """Largest log-prob difference to Hugging Face, and largest weight difference after the round trip."""
    import torch

    tokens = training_batch(step=0).sequences[0].token_ids
    exported = folder.parent / "exported.safetensors"
    spec = spec_of(folder, training=_training(layout()))
    _, scores = pool.run(play, spec, ("export_file", str(exported)), ("score_tokens", tokens))[0]
    with torch.no_grad():
        expected, _ = hf_logprobs(hf_model(folder), tokens)
    return float((torch.tensor(scores[1:]) - expected).abs().max()), weight_difference(folder, exported)


def _layout_errors(pool: WorldPool, folder: Path, batch: TrainingBatch) -> tuple[dict[str, float], list[float]]:
    """Largest gradient difference per layout, and the round-trip differences under the same layouts."""
    expected = hf_gradients(folder, batch, _LOSS, _TEMPERATURE)
    exported = folder.parent / "exported.safetensors"
    errors: dict[str, float] = {}
    trips: list[float] = []
    for name, shape in LAYOUTS.items():
        spec = spec_of(folder, training=_training(shape), temperature=_TEMPERATURE)
        _, gradients = pool.run(play, spec, ("export_file", str(exported)), ("gradients", batch))[0]
        errors[name] = gradient_difference(gradients, expected)
        trips.append(weight_difference(folder, exported))
    return errors, trips


def gradient_difference(got: dict[str, Any], expected: dict[str, Any]) -> float:
    """Largest absolute difference over all parameters; both sides must name the same ones."""
    assert got.keys() == expected.keys(), f"parameters differ: {sorted(got.keys() ^ expected.keys())}"
    return max(float(abs(got[name] - expected[name]).max()) for name in expected)


def weight_difference(folder: Path, exported: Path) -> float:
    from safetensors.torch import load_file

    original, again = load_file(folder / "model.safetensors"), load_file(exported)
    assert again.keys() <= original.keys(), f"unknown tensors: {sorted(again.keys() - original.keys())}"
    missing = original.keys() - again.keys() - {"lm_head.weight"}
    assert not missing, f"not exported: {sorted(missing)}"
    return max(float((original[name] - again[name]).abs().max()) for name in again)


def _training(shape: LayoutConfig) -> TrainingConfig:
    return TrainingConfig(layout=shape, loss=_LOSS, micro_batch_tokens=_BUDGET_TOKENS, collective_timeout_s=60.0)
