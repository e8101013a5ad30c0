"""The real engine against Hugging Face transformers (float32, eager attention). Two models with sharp, different logits."""

import os
import signal
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch
from transformers import AutoModelForCausalLM

from libra_core.engines.broadcast import join_group
from libra_core.engines.verification.engine_model import SMALL, EngineModelShape, build_engine_model
from libra_core.engines.verification.remote import RemoteObject
from libra_core.engines.vllm.spec import EngineFacts, EngineSpec, process_environment
from libra_core.engines.weight_source import BroadcastWeights, FileWeights, TensorMeta
from libra_core.errors import CheckpointError, EngineLostError
from libra_core.types.ids import EngineId
from libra_core.types.trajectory import FinishReason, GeneratedTurn, GenerationRequest

pytestmark = [pytest.mark.core, pytest.mark.integration, pytest.mark.timeout(400)]

TOLERANCE = 5e-5
PROMPT = tuple((37 * index + 11) % SMALL.vocab_size for index in range(100))
_ids = iter(range(10**6))


@dataclass
class Reference:
    """One model folder and its transformers twin."""

    folder: Path

    def __post_init__(self) -> None:
        torch.set_num_threads(1)
        self._model = AutoModelForCausalLM.from_pretrained(self.folder, dtype=torch.float32, attn_implementation="eager").eval()

    @property
    def weights(self) -> FileWeights:
        return FileWeights(path=str(self.folder / "model.safetensors"))

    @torch.no_grad()
    def logprobs(self, token_ids: tuple[int, ...], temperature: float = 1.0) -> list[float]:
        rows = (self._model(torch.tensor([token_ids])).logits[0] / temperature).log_softmax(-1)
        return [0.0, *(rows[at - 1, token_ids[at]].item() for at in range(1, len(token_ids)))]

    def error(self, turn: GeneratedTurn, prompt: tuple[int, ...] = PROMPT, temperature: float = 1.0) -> float:
        expected = self.logprobs(prompt + turn.token_ids, temperature)[len(prompt) :]
        return max_difference(turn.logprobs, expected)

    def broadcast(self) -> tuple[BroadcastWeights, list[torch.Tensor]]:
        named = {name: tensor for name, tensor in self._model.state_dict().items() if name != "lm_head.weight"}
        metas = tuple(TensorMeta(name=name, dtype="float32", shape=tuple(tensor.shape)) for name, tensor in named.items())
        return BroadcastWeights(tensors=metas), [tensor.contiguous() for tensor in named.values()]


@dataclass
class Engine:
    """A remote `VllmEngine` with a version counter."""

    remote: RemoteObject
    facts: EngineFacts
    version: int = 0

    def generate(self, **changes: Any) -> GeneratedTurn:
        return self.remote.call("generate", request(**changes))

    def publish(self, reference: Reference, *, in_flight: str = "keep", recompute_kv: bool = True) -> None:
        self.version += 1
        self.remote.call("update_weights", reference.weights, self.version, in_flight=in_flight, recompute_kv=recompute_kv)

    def begin(self, at_least: int, **changes: Any) -> tuple[str, Any]:
        """Start a request and return once it has sampled some tokens."""
        asked = request(**changes)
        future = self.remote.submit("generate", asked)
        while (turn := self.remote.call("partial", asked.request_id)) is None or len(turn.token_ids) < at_least:
            assert not future.done()
        return asked.request_id, future


def request(**changes: Any) -> GenerationRequest:
    values: dict[str, Any] = {
        "request_id": f"r{next(_ids)}",
        "token_ids": PROMPT,
        "max_new_tokens": 32,
        "temperature": 1.0,
        "stop_token_ids": (),
    }
    return GenerationRequest(**(values | changes))


def max_difference(left: Any, right: Any) -> float:
    return max(abs(a - b) for a, b in zip(left, right, strict=True))


def start_engine(folder: Path, tp: int = 1) -> Engine:
    spec = EngineSpec(engine_id=EngineId("e0"), model_path=str(folder), tp=tp, kv_cache_mib=64, max_num_seqs=16)
    remote = RemoteObject("libra_core.engines.vllm.engine:VllmEngine", spec, environment=process_environment(spec))
    return Engine(remote=remote, facts=remote.call("start"))


def wait_until_gone(pids: tuple[int, ...], within_s: float) -> bool:
    deadline_s = time.monotonic() + within_s
    while time.monotonic() < deadline_s:
        if not any(_runs(pid) for pid in pids):
            return True
        time.sleep(0.1)
    return False


def _runs(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def shared_segments() -> set[str]:
    return {path.name for path in Path("/dev/shm").glob("vllm_dist_*")}


@pytest.fixture(scope="module")
def references(tmp_path_factory: pytest.TempPathFactory) -> tuple[Reference, Reference]:
    root = tmp_path_factory.mktemp("models")
    return tuple(Reference(build_engine_model(root / f"seed{seed}", seed=seed)) for seed in (1, 2))  # type: ignore[return-value]


@pytest.fixture(scope="module")
def engine(references: tuple[Reference, Reference]) -> Iterator[Engine]:
    started = start_engine(references[0].folder)
    yield started
    started.remote.close()
    assert wait_until_gone(started.facts.pids, within_s=1.0)


def test_samples_what_transformers_computes(engine: Engine, references: tuple[Reference, Reference]) -> None:
    engine.publish(references[0])
    turn = engine.generate()
    assert turn.finish_reason is FinishReason.LENGTH
    assert len(turn.token_ids) == len(turn.logprobs) == 32
    assert len(set(turn.token_ids)) > 8, "a collapsed model proves nothing"
    assert references[0].error(turn) < TOLERANCE


def test_update_to_other_weights_is_exact(engine: Engine, references: tuple[Reference, Reference]) -> None:
    for reference in (references[1], references[0], references[1]):
        engine.publish(reference)
        assert reference.error(engine.generate()) < TOLERANCE
        assert max_difference(engine.remote.call("score", PROMPT), reference.logprobs(PROMPT)) < TOLERANCE
    assert references[0].error(engine.generate()) > 0.1, "the two models must differ"


def test_logprobs_are_those_after_temperature(engine: Engine, references: tuple[Reference, Reference]) -> None:
    engine.publish(references[0])
    turn = engine.generate(temperature=0.7)
    assert references[0].error(turn, temperature=0.7) < TOLERANCE
    assert references[0].error(turn) > 1e-2


def test_stop_token_is_included_and_end_token_is_not_special(engine: Engine) -> None:
    greedy = engine.generate(temperature=0.0)
    stop = greedy.token_ids[10]
    stopped = engine.generate(temperature=0.0, stop_token_ids=(stop,))
    assert stopped.finish_reason is FinishReason.STOP
    assert stopped.token_ids == greedy.token_ids[: greedy.token_ids.index(stop) + 1]


@pytest.mark.parametrize("recompute_kv", [True, False])
def test_no_request_reads_the_prefix_cache_of_older_weights(
    engine: Engine, references: tuple[Reference, Reference], recompute_kv: bool
) -> None:
    engine.publish(references[0])
    engine.generate()
    assert engine.generate().cached_tokens >= 64
    _, running = engine.begin(5, max_new_tokens=400)
    engine.publish(references[1], recompute_kv=recompute_kv)
    fresh = engine.generate()
    assert fresh.cached_tokens == 0
    assert references[1].error(fresh) < TOLERANCE
    running.result(60)


def test_running_request_goes_on_under_the_weights_published_meanwhile(
    engine: Engine, references: tuple[Reference, Reference]
) -> None:
    engine.publish(references[0])
    _, running = engine.begin(20, max_new_tokens=400)
    engine.publish(references[1], in_flight="keep")
    turn = running.result(60)
    assert turn.finish_reason is FinishReason.LENGTH
    before, after = turn.versions
    assert (before.version, after.version) == (engine.version - 1, engine.version)
    assert (before.start, before.end, after.end) == (0, after.start, 400)
    whole = PROMPT + turn.token_ids
    cut = len(PROMPT) + before.end
    assert max_difference(turn.logprobs[: before.end], references[0].logprobs(whole)[len(PROMPT) : cut]) < TOLERANCE
    assert max_difference(turn.logprobs[before.end :], references[1].logprobs(whole)[cut:]) < TOLERANCE


def test_publication_can_return_running_requests_with_their_tokens(
    engine: Engine, references: tuple[Reference, Reference]
) -> None:
    engine.publish(references[0])
    _, running = engine.begin(20, max_new_tokens=400)
    engine.publish(references[1], in_flight="abort")
    turn = running.result(60)
    assert turn.finish_reason is FinishReason.ABORT
    assert 20 <= len(turn.token_ids) < 400
    assert [segment.version for segment in turn.versions] == [engine.version - 1]
    assert references[0].error(turn) < TOLERANCE


def test_greedy_turn_is_the_same_after_abort_and_resume(engine: Engine, references: tuple[Reference, Reference]) -> None:
    engine.publish(references[0])
    undisturbed = engine.generate(temperature=0.0, max_new_tokens=400)
    assert len(set(undisturbed.token_ids)) > 8, "a collapsed model proves nothing"
    request_id, running = engine.begin(30, temperature=0.0, max_new_tokens=400)
    engine.remote.call("abort", [request_id])
    first = running.result(60)
    assert first.finish_reason is FinishReason.ABORT
    assert 30 <= len(first.token_ids) < 400
    rest = engine.generate(temperature=0.0, token_ids=PROMPT + first.token_ids, max_new_tokens=400 - len(first.token_ids))
    assert first.token_ids + rest.token_ids == undisturbed.token_ids


def test_weights_of_another_shape_are_refused_and_the_engine_serves_on(
    engine: Engine, references: tuple[Reference, Reference], tmp_path: Path
) -> None:
    engine.publish(references[0])
    other = build_engine_model(tmp_path / "other", seed=3, shape=EngineModelShape(ffn_size=256))
    for path in (other / "model.safetensors", tmp_path / "missing.safetensors"):
        with pytest.raises(CheckpointError, match=f"keeps version {engine.version}"):
            engine.remote.call("update_weights", FileWeights(path=str(path)), 99, in_flight="keep", recompute_kv=True)
    assert references[0].error(engine.generate()) < TOLERANCE


def test_impossible_requests_are_refused_in_a_sentence(engine: Engine) -> None:
    with pytest.raises(ValueError, match="do not fit"):
        engine.generate(max_new_tokens=5000)
    with pytest.raises(ValueError, match="vocabulary"):
        engine.generate(token_ids=(1, 512))


def test_a_sleeping_engine_takes_no_turn_and_no_time_and_wakes_with_its_weights(
    engine: Engine, references: tuple[Reference, Reference]
) -> None:
    engine.publish(references[0])
    _, running = engine.begin(20, max_new_tokens=400)
    engine.remote.call("sleep")
    engine.remote.call("sleep")
    turn = running.result(60)
    assert turn.finish_reason is FinishReason.ABORT
    assert references[0].error(turn) < TOLERANCE
    with pytest.raises(EngineLostError, match="e0 sleeps"):
        engine.generate()
    before_s = cpu_seconds(engine)
    time.sleep(1.0)
    assert cpu_seconds(engine) - before_s < 0.5, "one that polls would take all of the second"
    engine.remote.call("wake")
    engine.remote.call("wake")
    assert references[0].error(engine.generate()) < TOLERANCE
    engine.publish(references[1])
    assert references[1].error(engine.generate()) < TOLERANCE


def cpu_seconds(engine: Engine) -> float:
    """Of the hosting process and all that it started."""
    host = psutil.Process(engine.remote.process.pid)
    return sum(sum(process.cpu_times()[:2]) for process in (host, *host.children(recursive=True)))


def test_stats_count_tokens_and_busy_time(engine: Engine) -> None:
    before = engine.remote.call("stats")
    engine.generate()
    after = engine.remote.call("stats")
    assert after.generated_tokens - before.generated_tokens == 32
    assert after.prompt_tokens - before.prompt_tokens == len(PROMPT)
    assert (after.running, after.waiting) == (0, 0)
    assert after.busy_s > before.busy_s


def test_tensor_parallel_engine_samples_updates_and_dies_with_its_host(references: tuple[Reference, Reference]) -> None:
    segments = shared_segments()
    engine = start_engine(references[0].folder, tp=2)
    try:
        assert len(engine.facts.pids) == 3
        assert references[0].error(engine.generate()) < TOLERANCE
        engine.remote.call("sleep")
        engine.remote.call("wake")
        engine.publish(references[1])
        assert references[1].error(engine.generate()) < TOLERANCE
        _publish_by_broadcast(engine, references[0], num_workers=2)
        assert references[0].error(engine.generate()) < TOLERANCE
    finally:
        os.kill(engine.remote.process.pid, signal.SIGKILL)
        engine.remote.close()
    assert wait_until_gone(engine.facts.pids, within_s=10.0)
    assert shared_segments() <= segments


def _publish_by_broadcast(engine: Engine, reference: Reference, num_workers: int) -> None:
    port, world = _free_port(), num_workers + 1
    opened = engine.remote.submit("open_transport", "broadcast", "127.0.0.1", port, 1, world)
    group = join_group("127.0.0.1", port, 0, world, 60.0)
    opened.result(60)
    engine.version += 1
    source, tensors = reference.broadcast()
    updated = engine.remote.submit("update_weights", source, engine.version, in_flight="keep", recompute_kv=True)
    for tensor in tensors:
        group.broadcast(tensor)
    updated.result(60)


def _free_port() -> int:
    import socket

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@pytest.mark.slow
def test_engine_process_dies_with_a_killed_host(references: tuple[Reference, Reference]) -> None:
    engine = start_engine(references[0].folder)
    os.kill(engine.remote.process.pid, signal.SIGKILL)
    engine.remote.close()
    assert wait_until_gone(engine.facts.pids, within_s=10.0)


def test_dead_engine_process_is_reported_as_a_lost_engine(references: tuple[Reference, Reference]) -> None:
    engine = start_engine(references[0].folder)
    try:
        _, running = engine.begin(5, max_new_tokens=400)
        os.kill(engine.facts.pids[0], signal.SIGKILL)
        with pytest.raises(EngineLostError, match="e0 is lost"):
            running.result(30)
        with pytest.raises(EngineLostError, match="out of service"):
            engine.generate()
    finally:
        engine.remote.close()
