"""Real Megatron worlds over gloo on this machine's CPUs. Small random models; every claim is exact or has a bound."""

import json
import shutil
import socket
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from libra_core.config.training import LayoutConfig, LossConfig, OptimizerConfig, TrainingConfig
from libra_core.engines.megatron.spec import TrainerSpec
from libra_core.engines.verification import trainer_checks
from libra_core.engines.verification.models import build_model_folder, training_batch, without_signal
from libra_core.engines.verification.reference import hf_gradients, hf_logprobs, hf_model, sampled_by
from libra_core.engines.verification.trainer_checks import gradient_difference, weight_difference
from libra_core.engines.verification.worlds import WorldPool, free_port, layout, play, spec_of
from libra_core.errors import CheckpointError, ConfigError, ModelFolderError, NumericsError, ResourceError
from libra_core.types.batch import TrainingBatch

pytestmark = [pytest.mark.core, pytest.mark.integration]
GRADIENT_BOUND = 1e-6
ENTROPY = LossConfig(entropy_coefficient=0.01)


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


def spec(model: Path, shape: LayoutConfig | None = None, *, loss: LossConfig = ENTROPY, **options: Any) -> TrainerSpec:
    training = TrainingConfig(
        layout=shape or layout(),
        loss=loss,
        micro_batch_tokens=64,
        collective_timeout_s=60.0,
        optimizer=OptimizerConfig(**options),
    )
    return spec_of(model, training=training)


def updates(*steps: int) -> list[tuple[str, TrainingBatch]]:
    return [("update", training_batch(step=step)) for step in steps]


# ---- against independent computations ----


@pytest.fixture(scope="module")
def figures(pool: WorldPool) -> dict[str, Any]:
    return trainer_checks.trainer_figures(pool, lambda _stage: None)


def test_logprobs_equal_hugging_face_for_every_family(figures: dict[str, Any]) -> None:
    assert figures["trainer_vs_hf_logprob"] <= trainer_checks.BOUNDS["trainer_vs_hf_logprob"]


def test_weights_survive_the_round_trip_unchanged_in_every_layout(figures: dict[str, Any]) -> None:
    assert figures["roundtrip_hf"] == 0.0


@pytest.mark.parametrize("name", trainer_checks.LAYOUTS)
def test_gradients_equal_one_process(figures: dict[str, Any], name: str) -> None:
    assert figures["grad_vs_single"][name] <= GRADIENT_BOUND


def test_a_resumed_run_continues_bit_for_bit(figures: dict[str, Any]) -> None:
    assert figures["checkpoint_resume_identical"]


@pytest.mark.parametrize(
    "shape",
    [
        layout(tp=2, sequence_parallel=True),
        layout(pp=2, recompute=True),
        layout(tp=2, dp=2, sequence_parallel=True, recompute=True, distributed_optimizer=True),
    ],
    ids=["sequence parallel", "recompute", "all options"],
)
def test_options_do_not_change_the_gradient(pool: WorldPool, model: Path, batch: TrainingBatch, shape: LayoutConfig) -> None:
    gradients = pool.run(play, spec(model, shape), ("gradients", batch))[0][0]
    assert gradient_difference(gradients, hf_gradients(model, batch, ENTROPY, 1.0)) <= GRADIENT_BOUND


def test_a_rank_without_sequences_takes_part(pool: WorldPool, model: Path, batch: TrainingBatch) -> None:
    single = replace(batch, sequences=batch.sequences[:1])
    gradients = pool.run(play, spec(model, layout(dp=2)), ("gradients", single))[0][0]
    # One sequence instead of eight: gradients, and with them the rounding, are larger.
    assert gradient_difference(gradients, hf_gradients(model, single, ENTROPY, 1.0)) <= 5 * GRADIENT_BOUND


def test_every_rank_scores_alike(pool: WorldPool, model: Path, batch: TrainingBatch) -> None:
    tokens = batch.sequences[0].token_ids
    answers = pool.run(play, spec(model, layout(tp=2, pp=2)), ("score_tokens", tokens))
    expected = hf_logprobs(hf_model(model), tokens)[0].tolist()
    assert all(answer == answers[0] for answer in answers)
    assert answers[0][0][1:] == pytest.approx(expected, abs=5e-6)
    assert answers[0][0][0] == 0.0


# ---- losses that need extra forward passes ----


def test_recomputed_denominators_equal_an_exact_sampler(pool: WorldPool, model: Path) -> None:
    exact = sampled_by(model, training_batch(step=0), spread=0.0)
    recompute = LossConfig(old_logprobs="recompute")
    ours = pool.run(play, spec(model, layout(pp=2), loss=recompute), ("gradients", exact))[0][0]
    assert gradient_difference(ours, hf_gradients(model, exact, LossConfig(), 1.0)) <= 5e-6


def test_the_reference_of_the_kl_penalty_is_the_start_model(pool: WorldPool, model: Path, batch: TrainingBatch) -> None:
    penalised = spec(model, layout(pp=2), loss=LossConfig(kl_coefficient=1.0), warmup_steps=0)
    at_start = ("gradients", without_signal(batch))
    later = ("gradients", replace(without_signal(batch), expected_version=1))
    start, report, moved = pool.run(play, penalised, at_start, ("update", batch), later)[0]
    assert max(abs(gradient).max() for gradient in start.values()) < 1e-6
    assert not report.skipped
    assert max(abs(gradient).max() for gradient in moved.values()) > 1e-4


# ---- updates ----


def test_reports_are_the_same_on_every_rank(pool: WorldPool, model: Path) -> None:
    answers = pool.run(play, spec(model, layout(tp=2, dp=2)), *updates(0, 1))
    assert all(answer == answers[0] for answer in answers)
    report = answers[0][1]
    assert (report.step, report.policy_version) == (1, 2)
    assert report.tokens == sum(len(sequence.token_ids) for sequence in training_batch(step=1).sequences)
    assert report.loss_tokens == sum(sum(sequence.loss_mask) for sequence in training_batch(step=1).sequences)
    assert report.duration_s >= report.forward_backward_s > 0


def test_the_learning_rate_warms_up(pool: WorldPool, model: Path) -> None:
    reports = pool.run(play, spec(model, learning_rate=1e-3, warmup_steps=4), *updates(0, 1, 2, 3, 4))[0]
    assert [report.learning_rate for report in reports] == pytest.approx([0.25e-3, 0.5e-3, 0.75e-3, 1e-3, 1e-3])


def test_an_update_that_is_sent_again_is_not_applied_again(pool: WorldPool, model: Path) -> None:
    first, before, again, after, version = pool.run(
        play, spec(model), *updates(0), ("digest",), *updates(0), ("digest",), ("policy_version",)
    )[0]
    assert again == first
    assert after == before
    assert version == 1


def test_a_batch_for_another_version_is_refused(pool: WorldPool, model: Path) -> None:
    before, refused, after = pool.run(play, spec(model), ("digest",), *updates(3), ("digest",))[0]
    assert isinstance(refused, ConfigError)
    assert "updates policy version 3, but the trainer holds version 0" in str(refused)
    assert after == before


def test_a_batch_without_signal_counts_as_a_step_but_changes_nothing(pool: WorldPool, model: Path) -> None:
    flat = ("update", without_signal(training_batch(step=0)))
    plain = spec(model, loss=LossConfig())
    before, report, after, following = pool.run(play, plain, ("digest",), flat, ("digest",), *updates(1))[0]
    assert report.skipped
    assert report.policy_version == 1
    assert after == before
    assert not following.skipped
    assert following.learning_rate == pytest.approx(2 * report.learning_rate)


def test_a_loss_that_is_not_finite_stops_before_the_weights_change(pool: WorldPool, model: Path, batch: TrainingBatch) -> None:
    poisoned = replace(batch.sequences[0], advantage=float("nan"))
    call = ("update", replace(batch, sequences=(poisoned, *batch.sequences[1:])))
    for before, error, after, version in pool.run(
        play, spec(model, layout(dp=2)), ("digest",), call, ("digest",), ("policy_version",)
    ):
        assert isinstance(error, NumericsError)
        assert "the loss of batch step-000000 at version 0 is nan" in str(error)
        assert (after, version) == (before, 0)


def test_the_distributed_optimizer_makes_the_same_steps(pool: WorldPool, model: Path, tmp_path: Path) -> None:
    for name, distributed in (("plain", False), ("distributed", True)):
        shape = layout(dp=2, distributed_optimizer=distributed)
        pool.run(play, spec(model, shape), *updates(0, 1, 2), ("export_hf_folder", str(tmp_path / name)))
    assert weight_difference(tmp_path / "plain", tmp_path / "distributed/model.safetensors") <= 1e-6


# ---- checkpoints ----


@pytest.mark.parametrize("distributed", [False, True], ids=["plain", "distributed"])
def test_resume_is_exact_when_a_batch_was_skipped(pool: WorldPool, model: Path, tmp_path: Path, distributed: bool) -> None:
    shape = spec(model, layout(dp=2, distributed_optimizer=distributed), loss=LossConfig())
    calls = [("update", without_signal(training_batch(step=0))), *updates(1)]
    straight = pool.run(play, shape, *calls, ("save", str(tmp_path / "c"), {"prompt": 7}), *updates(2), ("digest",))
    loaded = pool.run(play, shape, ("load", str(tmp_path / "c")), *updates(1), ("policy_version",), *updates(2), ("digest",))
    assert loaded[0][0] == {"prompt": 7}
    assert loaded[0][1] == straight[0][1], "the report of the applied batch must survive"
    assert loaded[0][2] == 2
    assert {answers[-1] for answers in (*loaded, *straight)} == {straight[0][-1]}


@pytest.mark.parametrize("distributed", [False, True], ids=["plain", "distributed"])
def test_a_checkpoint_taken_before_the_first_step_resumes(
    pool: WorldPool, model: Path, tmp_path: Path, distributed: bool
) -> None:
    fresh = spec(model, layout(dp=2, distributed_optimizer=distributed))
    straight = pool.run(play, fresh, ("save", str(tmp_path / "c")), *updates(0), ("digest",))
    resumed = pool.run(play, fresh, ("load", str(tmp_path / "c")), *updates(0), ("digest",))
    assert straight[0][-1] == resumed[0][-1]


@pytest.mark.parametrize("distributed", [False, True], ids=["plain", "distributed"])
def test_a_checkpoint_loads_in_another_layout(pool: WorldPool, model: Path, tmp_path: Path, distributed: bool) -> None:
    folder = str(tmp_path / "c")
    wide = spec(model, layout(tp=2, distributed_optimizer=distributed))
    deep = spec(model, layout(pp=2, dp=2, distributed_optimizer=distributed))
    next_weights = ("export_hf_folder", str(tmp_path / "wide"))
    saved = pool.run(play, wide, *updates(0, 1), ("save", folder), ("digest",), *updates(2), next_weights)
    loaded = pool.run(play, deep, ("load", folder), ("digest",), *updates(2), ("export_hf_folder", str(tmp_path / "deep")))
    assert {answers[1] for answers in loaded} == {saved[0][3]}
    assert weight_difference(tmp_path / "wide", tmp_path / "deep/model.safetensors") <= 1e-6


@pytest.fixture(scope="module")
def saved(pool: WorldPool, model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("checkpoints") / "step-000001"
    pool.run(play, spec(model), *updates(0), ("save", str(folder)))
    return folder


def test_a_checkpoint_leaves_no_partial_folder(saved: Path) -> None:
    assert [file.name for file in saved.parent.iterdir()] == [saved.name]


def test_a_damaged_checkpoint_is_refused_on_every_rank(pool: WorldPool, model: Path, saved: Path, tmp_path: Path) -> None:
    listing = json.loads((saved / "COMPLETE.json").read_text())
    largest = max(listing, key=lambda name: listing[name]["bytes"])

    def damaged(name: str) -> Path:
        return Path(shutil.copytree(saved, tmp_path / name))

    (damaged("unmarked") / "COMPLETE.json").unlink()
    (damaged("marker") / "COMPLETE.json").write_text("{")
    (damaged("missing") / largest).unlink()
    short = damaged("short") / largest
    short.write_bytes(short.read_bytes()[:-1])
    flipped = damaged("flipped") / largest
    flipped.write_bytes(bytes([flipped.read_bytes()[0] ^ 1]) + flipped.read_bytes()[1:])
    expected = {
        "nowhere": "not a complete checkpoint",
        "unmarked": "not a complete checkpoint",
        "marker": "COMPLETE.json is damaged",
        "missing": "is missing",
        "short": "bytes instead of",
        "flipped": "checksum",
    }
    calls = [("load", str(tmp_path / name)) for name in expected]
    answers = pool.run(play, spec(model, layout(tp=2)), ("digest",), *calls, ("digest",))
    for before, *errors, after in answers:
        assert before == after
        for error, sentence in zip(errors, expected.values(), strict=True):
            assert isinstance(error, CheckpointError)
            assert sentence in str(error)


def test_a_checkpoint_of_another_model_is_refused(pool: WorldPool, saved: Path, tmp_path: Path) -> None:
    other = build_model_folder(tmp_path / "untied", family="qwen3", tied=False)
    error = pool.run(play, spec(other), ("load", str(saved)))[0][0]
    assert isinstance(error, CheckpointError)
    assert "tied_embeddings True, but the run trains False" in str(error)


# ---- weights out ----


def test_an_exported_folder_is_a_complete_hf_model(pool: WorldPool, model: Path, batch: TrainingBatch, tmp_path: Path) -> None:
    tokens = batch.sequences[1].token_ids
    answers = pool.run(
        play, spec(model, layout(tp=2)), *updates(0), ("export_hf_folder", str(tmp_path / "out")), ("score_tokens", tokens)
    )
    assert answers[0][2][1:] == pytest.approx(hf_logprobs(hf_model(tmp_path / "out"), tokens)[0].tolist(), abs=5e-6)
    assert (tmp_path / "out/tokenizer.json").is_file()


def test_broadcast_delivers_the_trained_weights(pool: WorldPool, model: Path, tmp_path: Path) -> None:
    import torch
    from safetensors.torch import load_file

    from libra_core.engines.broadcast import join_group

    port = free_port()
    shape = spec(model, layout(tp=2, pp=2))
    received: dict[str, torch.Tensor] = {}
    metadata = pool.run(play, shape, ("export_metadata",))[0][0]

    def engine() -> None:
        group = join_group("127.0.0.1", port, 1, 2, 60.0)
        for name, dtype, size in metadata:
            received[name] = torch.empty(size, dtype=getattr(torch, dtype))
            group.broadcast(received[name])

    thread = threading.Thread(target=engine, daemon=True)
    thread.start()
    file = str(tmp_path / "now.safetensors")
    pool.run(
        play, shape, *updates(0), ("open_broadcast", "127.0.0.1", port, 2, 60.0), ("broadcast_weights",), ("export_file", file)
    )
    thread.join(30.0)
    published = load_file(file)
    assert received.keys() == published.keys()
    assert all(torch.equal(received[name], published[name]) for name in published)


# ---- starts that cannot work ----


def test_a_taken_port_is_one_sentence(model: Path) -> None:
    # A process of its own: torch counts a failed join as a group, so its process could not join the others any more.
    with WorldPool(1) as alone, socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        error = alone.run(play, replace(spec(model), master_port=port))[0][0]
    assert isinstance(error, ResourceError)
    assert f"could not join 127.0.0.1:{port}" in str(error)


def test_a_world_of_the_wrong_size_is_refused(pool: WorldPool, model: Path) -> None:
    for answers in pool.run(play, replace(spec(model), world_size=2)):
        assert isinstance(answers[0], ConfigError)
        assert "tp · pp · dp = 1" in str(answers[0])


def test_weights_that_contradict_the_config_are_refused_and_leave_the_world(pool: WorldPool, model: Path, tmp_path: Path) -> None:
    broken = Path(shutil.copytree(model, tmp_path / "broken"))
    config = json.loads((broken / "config.json").read_text())
    (broken / "config.json").write_text(json.dumps({**config, "intermediate_size": 128}))
    for answers in pool.run(play, spec(broken, layout(tp=2)), ("digest",)):
        assert isinstance(answers[0], ModelFolderError)
        assert "gate_proj.weight has shape (256, 128), but config.json implies (128, 128)" in str(answers[0])
    assert len(pool.run(play, spec(model, layout(tp=2)), ("digest",))) == 2


def test_a_failed_rank_ends_the_pool_with_its_traceback(model: Path) -> None:
    with WorldPool(1) as alone, pytest.raises(NumericsError, match="has no attribute 'no_such_method'"):
        alone.run(play, spec(model), ("no_such_method",))


# ---- bfloat16, as far as a CPU can show it: main weights and gradients stay float32 ----


def test_bfloat16_trains_and_resumes(pool: WorldPool, model: Path, batch: TrainingBatch, tmp_path: Path) -> None:
    half = replace(spec(model, layout(dp=2, distributed_optimizer=True)), dtype="bfloat16")
    checkpoint, tokens = str(tmp_path / "c"), batch.sequences[0].token_ids
    score = ("score_tokens", tokens)
    straight = pool.run(play, half, score, *updates(0), ("save", checkpoint), *updates(1), ("digest",))
    resumed = pool.run(play, half, ("load", checkpoint), *updates(1), ("digest",), ("export_metadata",))
    exact = hf_logprobs(hf_model(model), tokens)[0].tolist()
    assert straight[0][0][1:] == pytest.approx(exact, abs=0.3)
    assert straight[0][-1] == resumed[0][2]
    assert {dtype for _, dtype, _ in resumed[0][3]} == {"bfloat16"}
