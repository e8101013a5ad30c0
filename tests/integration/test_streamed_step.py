"""A step whose batch arrives in parts, on real Megatron worlds: the same update as the whole batch, and never counted twice."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import Any, get_args

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from libra_core.config.training import LayoutConfig, LossConfig, OptimizerConfig, TrainingConfig
from libra_core.engines.megatron.spec import TrainerSpec
from libra_core.engines.verification.models import build_model_folder, training_batch, without_signal
from libra_core.engines.verification.reference import sampled_by
from libra_core.engines.verification.trainer_checks import gradient_difference
from libra_core.engines.verification.worlds import WorldPool, layout, play, spec_of
from libra_core.errors import ConfigError, NumericsError
from libra_core.types.batch import TrainingBatch, TrainingSequence
from libra_core.types.reports import UpdateReport

pytestmark = pytest.mark.integration
GRADIENT_BOUND = 1e-6
ENTROPY = LossConfig(entropy_coefficient=0.01)
LAYOUTS = {
    "TP2": layout(tp=2),
    "TP2 sequence parallel": layout(tp=2, sequence_parallel=True),
    "PP2": layout(pp=2),
    "PP4": layout(pp=4),
    "DP2": layout(dp=2),
    "DP2 distributed": layout(dp=2, distributed_optimizer=True),
    "PP2xDP2 recompute": layout(pp=2, dp=2, recompute=True),
    "TP2xDP2 all options": layout(tp=2, dp=2, sequence_parallel=True, recompute=True, distributed_optimizer=True),
}
DIVIDED = layout(dp=2, distributed_optimizer=True)
Part = tuple[TrainingSequence, ...]
Call = tuple[Any, ...]


@pytest.fixture(scope="module")
def pool() -> Iterator[WorldPool]:
    with WorldPool(4) as processes:
        yield processes


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_model_folder(tmp_path_factory.mktemp("models") / "qwen3", family="qwen3", tied=True)


@pytest.fixture(scope="module")
def batch(model: Path) -> TrainingBatch:
    return sampled_by(model, training_batch(step=0))


@pytest.fixture(scope="module")
def unstreamed(pool: WorldPool, model: Path, batch: TrainingBatch) -> dict[str, Any]:
    return pool.run(play, spec(model), ("gradients", batch))[0][0]


def spec(model: Path, shape: LayoutConfig | None = None, *, loss: LossConfig = ENTROPY) -> TrainerSpec:
    training = TrainingConfig(
        layout=shape or layout(),
        loss=loss,
        micro_batch_tokens=64,
        collective_timeout_s=60.0,
        optimizer=OptimizerConfig(warmup_steps=0),
    )
    return spec_of(model, training=training)


def begin(batch: TrainingBatch) -> Call:
    return ("begin_step", batch.batch_id, batch.expected_version)


def add(parts: Sequence[Part]) -> list[Call]:
    return [("accumulate", part) for part in parts]


def cut(sequences: Sequence[TrainingSequence], *, at: Sequence[int]) -> list[Part]:
    bounds = [0, *sorted(at), len(sequences)]
    return [tuple(sequences[start:end]) for start, end in pairwise(bounds)]


def singles(batch: TrainingBatch) -> list[Part]:
    """One sequence at a time: of two replicas, one always has nothing to do."""
    return [(sequence,) for sequence in batch.sequences]


def some_splits(batch: TrainingBatch) -> list[list[Part]]:
    """A few random orders, cut at random, an empty part and the smallest parts among them."""
    random = Random(0)
    shuffled = [random.sample(batch.sequences, k=len(batch.sequences)) for _ in range(2)]
    return [*[cut(order, at=random.choices(range(9), k=3)) for order in shuffled], [(), *singles(batch)]]


def streamed_gradients(batch: TrainingBatch, splits: Sequence[Sequence[Part]]) -> list[Call]:
    return [call for parts in splits for call in (begin(batch), *add(parts), ("step_gradients",))]


def gradients_among(answers: Sequence[Any]) -> list[dict[str, Any]]:
    return [answer for answer in answers if isinstance(answer, dict)]


# ---- the same gradient ----


@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(order=st.permutations(range(8)), at=st.lists(st.integers(0, 8), max_size=7))
def test_order_and_parts_do_not_change_the_gradient(
    pool: WorldPool, model: Path, batch: TrainingBatch, unstreamed: dict[str, Any], order: list[int], at: list[int]
) -> None:
    parts = cut([batch.sequences[index] for index in order], at=at)
    answers = pool.run(play, spec(model), *streamed_gradients(batch, [parts]))[0]
    assert gradient_difference(answers[-1], unstreamed) <= GRADIENT_BOUND


@pytest.mark.parametrize("name", LAYOUTS)
def test_every_layout_adds_up_to_the_gradient_of_one_process(
    pool: WorldPool, model: Path, batch: TrainingBatch, unstreamed: dict[str, Any], name: str
) -> None:
    splits = some_splits(batch)
    for answers in pool.run(play, spec(model, LAYOUTS[name]), *streamed_gradients(batch, splits)):
        found = gradients_among(answers)
        assert len(found) == len(splits)
        assert all(gradient_difference(gradients, unstreamed) <= GRADIENT_BOUND for gradients in found)


@pytest.mark.parametrize("kind", get_args(LossConfig.model_fields["kind"].annotation))
def test_every_loss_adds_up_also_with_recomputed_denominators(
    pool: WorldPool, model: Path, batch: TrainingBatch, kind: Any
) -> None:
    loss = LossConfig(kind=kind, old_logprobs="recompute", kl_coefficient=0.1, entropy_coefficient=0.01)
    # An update first: the policy leaves its reference, so that the KL term has a gradient.
    first, later = ("update", training_batch(step=0)), replace(batch, expected_version=1, batch_id="step-000001")
    calls = [first, ("gradients", later), *streamed_gradients(later, some_splits(later))]
    whole, *parts = gradients_among(pool.run(play, spec(model, DIVIDED, loss=loss), *calls)[0])
    assert len(parts) == 3
    assert all(gradient_difference(gradients, whole) <= GRADIENT_BOUND for gradients in parts)


# ---- the same step ----


def facts(report: UpdateReport) -> dict[str, float]:
    """Without times and without the number of micro-batches, which depends on the parts."""
    names = ("step", "policy_version", "loss", "grad_norm", "entropy", "kl", "clip_fraction", "dual_clip_fraction")
    names += ("importance_mean", "importance_max")
    return {name: getattr(report, name) for name in (*names, "tokens", "loss_tokens", "learning_rate", "skipped")}


@pytest.mark.parametrize("shape", [layout(tp=2), layout(pp=2, dp=2), DIVIDED], ids=["TP2", "PP2xDP2", "DP2 distributed"])
def test_the_report_is_that_of_the_whole_batch(pool: WorldPool, model: Path, batch: TrainingBatch, shape: LayoutConfig) -> None:
    whole = pool.run(play, spec(model, shape), ("update", batch))[0][0]
    streamed = pool.run(play, spec(model, shape), begin(batch), *add(singles(batch)), ("finish_step",))
    assert all(answers[-1] == streamed[0][-1] for answers in streamed)
    assert facts(streamed[0][-1]) == pytest.approx(facts(whole), rel=1e-5)


def test_parts_report_their_tokens_and_their_times_add_up(pool: WorldPool, model: Path, batch: TrainingBatch) -> None:
    _, *parts, report = pool.run(play, spec(model), begin(batch), *add(singles(batch)), ("finish_step",))[0]
    assert [part.tokens for part in parts] == [len(sequence.token_ids) for sequence in batch.sequences]
    assert sum(part.tokens for part in parts) == report.tokens
    assert sum(part.loss_tokens for part in parts) == report.loss_tokens
    assert report.micro_batches == len(batch.sequences)
    spent_s = sum(part.duration_s for part in parts)
    assert report.duration_s >= report.optimizer_s + spent_s
    assert report.forward_backward_s + report.logprob_s >= spent_s


def test_a_step_without_anything_is_skipped(pool: WorldPool, model: Path) -> None:
    empty = training_batch(step=0)
    before, _, _, report, after = pool.run(
        play, spec(model, DIVIDED), ("digest",), begin(empty), ("accumulate", ()), ("finish_step",), ("digest",)
    )[0]
    assert (report.skipped, report.policy_version, report.tokens, report.importance_mean) == (True, 1, 0, 1.0)
    assert after == before


def test_parts_without_signal_count_in_the_divisor_but_make_no_step(pool: WorldPool, model: Path, batch: TrainingBatch) -> None:
    plain = spec(model, DIVIDED, loss=LossConfig())
    flat = without_signal(batch)
    half = replace(batch, sequences=(*batch.sequences[:4], *flat.sequences[4:]))
    step = [begin(half), *add(cut(half.sequences, at=[4]))]
    whole, *_, streamed = pool.run(play, plain, ("gradients", half), *step, ("step_gradients",))[0]
    assert gradient_difference(streamed, whole) <= GRADIENT_BOUND
    *_, made = pool.run(play, plain, *step, ("finish_step",))[0]
    *_, skipped = pool.run(play, plain, begin(flat), *add(singles(flat)), ("finish_step",))[0]
    assert (made.skipped, skipped.skipped) == (False, True)


# ---- nothing is counted twice ----

INTERRUPTIONS: dict[str, list[Call]] = {
    "discarded": [("discard_step",)],
    "begun again": [],
    "another batch begun": [begin(replace(training_batch(step=0), batch_id="another"))],
    "asked for gradients": [("gradients", training_batch(step=7))],
    "begun for a wrong version": [begin(training_batch(step=5))],
}


@pytest.mark.parametrize("name", INTERRUPTIONS)
def test_an_interrupted_step_starts_again(pool: WorldPool, model: Path, batch: TrainingBatch, name: str) -> None:
    shape = spec(model, DIVIDED)
    first = ("update", batch)
    second = training_batch(step=1)
    step = [begin(second), *add(singles(second))]
    straight = pool.run(play, shape, first, *step, ("finish_step",), ("digest",))
    again = pool.run(play, shape, first, *step[:4], *INTERRUPTIONS[name], *step, ("finish_step",), ("digest",))
    assert {answers[-1] for answers in (*straight, *again)} == {straight[0][-1]}
    assert facts(again[0][-2]) == facts(straight[0][-2])


@pytest.mark.parametrize("shape", [layout(pp=2), DIVIDED], ids=["PP2", "DP2 distributed"])
def test_looking_at_the_trainer_does_not_disturb_an_open_step(
    pool: WorldPool, model: Path, batch: TrainingBatch, tmp_path: Path, shape: LayoutConfig
) -> None:
    first, second = ("update", batch), training_batch(step=1)
    parts = add(singles(second))
    comparisons = [
        ("score_tokens", batch.sequences[0].token_ids),
        ("save", str(tmp_path / "c")),
        ("export_file", str(tmp_path / "w.safetensors")),
        ("digest",),
    ]
    straight = pool.run(play, spec(model, shape), first, begin(second), *parts, ("finish_step",), ("digest",))
    watched = pool.run(
        play, spec(model, shape), first, begin(second), *parts[:3], *comparisons, *parts[3:], ("finish_step",), ("digest",)
    )
    resumed = pool.run(
        play, spec(model, shape), ("load", str(tmp_path / "c")), begin(second), *parts, ("finish_step",), ("digest",)
    )
    assert {answers[-1] for answers in (*straight, *watched, *resumed)} == {straight[0][-1]}


def test_loading_a_checkpoint_discards_the_open_step(pool: WorldPool, model: Path, batch: TrainingBatch, tmp_path: Path) -> None:
    folder = str(tmp_path / "c")
    *_, refused = pool.run(
        play, spec(model), ("save", folder), begin(batch), *add([batch.sequences]), ("load", folder), ("finish_step",)
    )[0]
    assert isinstance(refused, ConfigError)


def test_a_batch_that_was_applied_is_not_opened_again(pool: WorldPool, model: Path, batch: TrainingBatch) -> None:
    opened, _, report, stored, refused = pool.run(
        play, spec(model), begin(batch), *add([batch.sequences]), ("finish_step",), begin(batch), *add([batch.sequences])
    )[0]
    assert opened is None
    assert stored == report
    assert isinstance(refused, ConfigError)


def test_calls_without_an_open_step_are_refused(pool: WorldPool, model: Path, batch: TrainingBatch) -> None:
    wrong = replace(batch, expected_version=3)
    for answers in pool.run(
        play,
        spec(model, DIVIDED),
        *add([batch.sequences]),
        ("finish_step",),
        ("discard_step",),
        begin(wrong),
        ("policy_version",),
    ):
        assert str(answers[0]) == "no step is open; call begin_step before accumulate"
        assert str(answers[1]) == "no step is open; call begin_step before finish_step"
        assert answers[2] is None
        assert "updates policy version 3, but the trainer holds version 0" in str(answers[3])
        assert answers[4] == 0


def test_a_step_whose_loss_is_not_finite_is_closed_and_can_be_taken_again(
    pool: WorldPool, model: Path, batch: TrainingBatch
) -> None:
    poisoned = (replace(batch.sequences[0], advantage=float("nan")),)
    clean = [begin(batch), *add(singles(batch)), ("finish_step",), ("digest",)]
    straight = pool.run(play, spec(model, DIVIDED), *clean)
    for answers in pool.run(play, spec(model, DIVIDED), begin(batch), *add([poisoned]), ("finish_step",), *clean):
        assert isinstance(answers[2], NumericsError)
        assert answers[-1] == straight[0][-1]
