"""KV moves between real engines through a shared folder: nothing of the continuation changes, and stale or damaged KV is not
used. TP 1, 1 and 2."""

import os
import signal
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from libra_core.engines.verification.engine_model import SMALL, build_engine_model
from libra_core.engines.verification.remote import RemoteError, RemoteObject
from libra_core.engines.vllm.spec import SHARED_FOLDER, EngineFacts, EngineSpec, KvTransferSpec, process_environment
from libra_core.engines.weight_source import FileWeights
from libra_core.errors import EngineLostError
from libra_core.types.ids import EngineId, PolicyVersion
from libra_core.types.trajectory import GeneratedTurn, GenerationRequest

pytestmark = [pytest.mark.integration, pytest.mark.slow, pytest.mark.timeout(600)]

BLOCK = 32
TOLERANCE = 5e-5
_ids = iter(range(10**6))


@dataclass
class Engine:
    remote: RemoteObject
    facts: EngineFacts

    def generate(self, tokens: tuple[int, ...], *, ticket: Any = None, count: int = 24) -> GeneratedTurn:
        return self.remote.call("generate", request(tokens, ticket=ticket, count=count))

    def offer(self, tokens: tuple[int, ...], version: int) -> Any:
        return self.remote.call("offer_kv", f"o{next(_ids)}", whole_blocks(tokens), version)


@dataclass
class World:
    """Three engines on one folder, and two sets of weights. Every claim begins at a version of its own, with empty caches."""

    engines: list[Engine]
    weights: tuple[FileWeights, FileWeights]
    folder: Path
    version: int = 0

    def publish(self, *, weights: int = 0, only: tuple[int, ...] = (0, 1, 2), **options: Any) -> int:
        self.version += 1
        asked = {"in_flight": "keep", "recompute_kv": True} | options
        calls = [self.engines[at].remote.submit("update_weights", self.weights[weights], self.version, **asked) for at in only]
        for call in calls:
            call.result(60)
        return self.version

    def files(self) -> list[Path]:
        return [path for path in (self.folder / "kv").rglob("*") if path.is_file()]


def request(tokens: tuple[int, ...], *, ticket: Any = None, count: int = 24) -> GenerationRequest:
    return GenerationRequest(
        request_id=f"r{next(_ids)}",
        token_ids=tokens,
        max_new_tokens=count,
        temperature=0.0,
        stop_token_ids=(),
        kv_ticket=ticket,
    )


def load(version: int) -> dict[str, Any]:
    """A ticket without an offer."""
    return {"version": version, "parameters": {"libra": "load"}}


def whole_blocks(tokens: tuple[int, ...]) -> tuple[int, ...]:
    """What an agent loop asks for after a turn: the blocks whose KV is whole, and one token more."""
    return tokens[: (len(tokens) - 1) // BLOCK * BLOCK + 1]


def prompt(seed: int) -> tuple[int, ...]:
    return tuple((37 * step + 101 * seed) % SMALL.vocab_size for step in range(200 + seed))


def tool_answer(seed: int) -> tuple[int, ...]:
    return tuple((13 * step + seed) % SMALL.vocab_size for step in range(9))


def require_same(one: GeneratedTurn, other: GeneratedTurn) -> None:
    assert len(set(one.token_ids)) > 8, "a collapsed model proves nothing"
    assert one.token_ids == other.token_ids
    assert max(abs(a - b) for a, b in zip(one.logprobs, other.logprobs, strict=True)) < TOLERANCE


def start_engine(model: Path, folder: Path, name: str, tp: int) -> tuple[RemoteObject, Any]:
    transfer = KvTransferSpec(connector=SHARED_FOLDER, options={"folder": str(folder / "kv"), "max_bytes": 64 << 20})
    spec = EngineSpec(
        engine_id=EngineId(name), model_path=str(model), tp=tp, kv_cache_mib=64, max_num_seqs=16, kv_transfer=transfer
    )
    remote = RemoteObject("libra_core.engines.vllm.engine:VllmEngine", spec, environment=process_environment(spec))
    return remote, remote.submit("start")


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    folder = tmp_path_factory.mktemp("hand-over")
    models = [build_engine_model(folder / f"seed{seed}", seed=seed) for seed in (1, 2)]
    starting = [start_engine(models[0], folder, f"e{number}", tp) for number, tp in enumerate((1, 1, 2))]
    try:
        yield World(
            engines=[Engine(remote, started.result(300)) for remote, started in starting],
            weights=tuple(FileWeights(path=str(model / "model.safetensors")) for model in models),  # type: ignore[arg-type]
            folder=folder,
        )
    finally:
        for remote, _ in starting:
            remote.close()


@pytest.mark.parametrize(("source", "target"), [(0, 1), (0, 2), (2, 0)], ids=["TP1-TP1", "TP1-TP2", "TP2-TP1"])
def test_a_moved_context_goes_on_as_if_it_had_stayed(world: World, source: int, target: int) -> None:
    version = world.publish()
    home, other = world.engines[source], world.engines[target]
    first = home.generate(prompt(source + target))
    context = prompt(source + target) + first.token_ids
    ticket = home.offer(context, version)
    assert ticket is not None
    moved = other.generate(context + tool_answer(1), ticket=ticket)
    held = (len(context) - 1) // BLOCK * BLOCK
    assert (moved.loaded_tokens, moved.cached_tokens) == (held, held)
    require_same(moved, home.generate(context + tool_answer(1)))
    assert [segment.version for segment in moved.versions] == [version]
    world.publish()
    again = other.generate(context + tool_answer(1))
    assert (again.cached_tokens, again.loaded_tokens) == (0, None)
    require_same(moved, again)


def test_only_what_the_target_lacks_is_loaded(world: World) -> None:
    version = world.publish()
    home, other = world.engines[:2]
    other.generate(prompt(3), count=1)
    held = len(prompt(3)) // BLOCK * BLOCK
    context = prompt(3) + home.generate(prompt(3), count=70).token_ids
    moved = other.generate(context, ticket=home.offer(context, version))
    assert moved.loaded_tokens == (len(context) - 1) // BLOCK * BLOCK - held
    assert moved.cached_tokens == moved.loaded_tokens + held
    require_same(moved, home.generate(context))


def test_kv_of_an_older_policy_is_neither_offered_nor_loaded(world: World) -> None:
    old = world.publish(weights=0)
    home, other = world.engines[:2]
    context = prompt(4) + home.generate(prompt(4)).token_ids
    ticket = home.offer(context, old)
    assert ticket is not None
    new = world.publish(weights=1, only=(1, 2))
    moved = other.generate(context, ticket=ticket)
    assert (moved.cached_tokens, moved.loaded_tokens) == (0, None)
    assert world.engines[2].generate(context, ticket=load(new)).cached_tokens == 0
    world.version -= 1
    assert world.publish(weights=1, only=(0,)) == new
    assert home.offer(context, old) is None
    assert home.offer(context, new) is None, "computed under the old weights"
    require_same(moved, home.generate(context))


@pytest.mark.parametrize("recompute_kv", [True, False])
def test_a_context_that_saw_a_publication_is_not_handed_over(world: World, recompute_kv: bool) -> None:
    old = world.publish()
    home = world.engines[0]
    asked = request(prompt(5), count=200)
    running = home.remote.submit("generate", asked)
    while len(home.remote.call("partial", asked.request_id).token_ids) < 20:
        assert not running.done()
    new = world.publish(weights=1, recompute_kv=recompute_kv)
    turn = running.result(60)
    assert {segment.version for segment in turn.versions} == {old, new}
    context = prompt(5) + turn.token_ids
    assert home.offer(context, old) is None
    assert home.offer(context, new) is None
    assert not world.files(), "a publication removes KV of older versions"


def test_a_ticket_may_want_its_tokens_adopted_first(world: World) -> None:
    """As connectors do that take over whole prompts alone."""
    version = world.publish()
    home, other = world.engines[:2]
    context = prompt(17) + home.generate(prompt(17)).token_ids
    ticket = home.offer(context, version) | {"adopt_tokens": len(whole_blocks(context))}
    moved = other.generate(context + tool_answer(2), ticket=ticket)
    assert moved.cached_tokens == (len(context) - 1) // BLOCK * BLOCK
    require_same(moved, home.generate(context + tool_answer(2)))


def test_connectors_of_vllm_get_their_options_and_the_policy_version() -> None:
    """Translation alone; none of them runs on this host."""
    from libra_core.engines.vllm.kv_transfer import request_parameters, transfer_config

    transfer = KvTransferSpec(connector="NixlConnector", options={"backends": ["UCX"]})
    asked = transfer_config(EngineSpec(engine_id=EngineId("e"), model_path="m", kv_transfer=transfer))
    assert asked is not None
    assert (asked.kv_connector, asked.kv_role, asked.kv_connector_extra_config) == (
        "NixlConnector",
        "kv_both",
        {"backends": ["UCX"]},
    )
    assert asked.kv_load_failure_policy == "recompute"
    version, ticket = PolicyVersion(7), {"version": 7, "parameters": {"remote_host": "h"}}
    assert request_parameters("NixlConnector", ticket, version) == {"remote_host": "h"}
    assert request_parameters("NixlConnector", ticket, PolicyVersion(8)) is None, "a ticket of another version is void"
    assert request_parameters("NixlConnector", ticket | {"adopt_tokens": 5}, version) is None, "for a request of its own"
    assert request_parameters("LMCacheConnectorV1", None, version) == {"lmcache.tag.policy": "7"}
    assert request_parameters(None, None, version) is None


def test_damaged_kv_is_computed_again(world: World) -> None:
    version = world.publish()
    home, other = world.engines[:2]
    context = prompt(6) + home.generate(prompt(6)).token_ids
    ticket = home.offer(context, version)
    files = sorted(world.files(), key=lambda path: path.stat().st_mtime_ns, reverse=True)
    for path in files[2:]:
        data = bytearray(path.read_bytes())
        data[len(data) // 2] ^= 0xFF
        path.write_bytes(bytes(data))
    moved = other.generate(context, ticket=ticket)
    assert (moved.loaded_tokens, moved.cached_tokens) == (2 * BLOCK, 2 * BLOCK)
    require_same(moved, home.generate(context))


def test_missing_kv_is_computed_again(world: World) -> None:
    moved = world.engines[1].generate(prompt(7), ticket=load(world.publish()))
    assert (moved.cached_tokens, moved.loaded_tokens) == (0, None)
    require_same(moved, world.engines[0].generate(prompt(7)))


def test_publications_and_hand_overs_do_not_disturb_each_other(world: World) -> None:
    version = world.publish()
    home, other = world.engines[:2]
    contexts = [prompt(seed) for seed in range(8, 16)]
    for context in contexts:
        home.generate(context, count=1)
    for _ in range(3):
        offers = [home.remote.submit("offer_kv", f"o{next(_ids)}", whole_blocks(one), version) for one in contexts]
        loads = [other.remote.submit("generate", request(one, ticket=load(version))) for one in contexts]
        version = world.publish()
        for offer in offers:
            offer.result(60)
        turns = [load.result(60) for load in loads]
        for context, turn in zip(contexts, turns, strict=True):
            require_same(turn, home.generate(context))


def test_an_engine_killed_while_it_saves_costs_a_prefill(world: World) -> None:
    """The last claim here: its engine is gone."""
    version = world.publish()
    home, other, _ = world.engines
    context = prompt(16) + home.generate(prompt(16), count=200).token_ids
    offering = home.remote.submit("offer_kv", "o", whole_blocks(context), version)
    for pid in home.facts.pids:
        os.kill(pid, signal.SIGKILL)
    try:
        offering.result(60)
    except (EngineLostError, RemoteError) as error:
        print("OFFER", error)
    moved = other.generate(context, ticket=load(version))
    assert moved.cached_tokens % BLOCK == 0
    require_same(moved, world.engines[2].generate(context))
