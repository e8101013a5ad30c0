"""Calls of actors are by name, which no type checker follows: here each is held against the class that answers it."""

import ast
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

from libra_core.runtime.base.actors import EngineActor, ReplicaActor, TrainerActor

ROOT = Path(__file__).parents[3]
RUNTIME = ROOT / "libra_core" / "runtime"
ACTORS = {
    "EngineActor": "base/actors.py",
    "TrainerActor": "base/actors.py",
    "ReplicaActor": "base/actors.py",
    "ClusterControllerActor": "cluster/controller.py",
    "RolloutCoordinatorActor": "rollout/coordinator.py",
    "TrajectoryStoreActor": "rollout/store.py",
    "RewardActor": "rollout/scorer.py",
}
HELD = {
    "EngineActor": ("libra_core/engines/vllm/engine.py", "VllmEngine"),
    "TrainerActor": ("libra_core/engines/megatron/trainer.py", "MegatronTrainer"),
    "ReplicaActor": ("libra_core/engines/megatron/hybrid.py", "HybridReplica"),
}
"""What an actor hands its named calls to."""
BY_NAME = frozenset({"call", "start", "_call"})
"""Methods of the flow's clients whose first argument is the name of a rank's method."""

Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True, slots=True, kw_only=True)
class Signature:
    """Of a method, without `self`."""

    required: int
    positional: int
    named: frozenset[str]
    is_async: bool

    def takes(self, positional: int, named: frozenset[str]) -> bool:
        return positional <= self.positional and named <= self.named and positional + len(named) >= self.required


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """`handle.method.remote(…)`, or the same to every rank."""

    where: str
    method: str
    positional: int
    named: frozenset[str]


def methods(text: str, name: str) -> dict[str, Function]:
    owner = next(node for node in ast.parse(text).body if isinstance(node, ast.ClassDef) and node.name == name)
    return {node.name: node for node in owner.body if isinstance(node, Function)}


def named_calls(text: str, name: str) -> frozenset[str]:
    """Arguments of `@calls(…)`; `*_SPANS` are the keys of that table."""
    tree = ast.parse(text)
    tables = {
        node.targets[0].id: node.value
        for node in tree.body
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name) and isinstance(node.value, ast.Dict)
    }
    owner = next(node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == name)
    given = [argument for decorator in owner.decorator_list if isinstance(decorator, ast.Call) for argument in decorator.args]
    spread = [key for item in given if isinstance(item, ast.Starred) for key in tables[ast.unparse(item.value)].keys]
    return frozenset(item.value for item in (*given, *spread) if isinstance(item, ast.Constant) and isinstance(item.value, str))


def signature(function: Function) -> Signature:
    arguments = function.args
    positional = [argument.arg for argument in arguments.args][1:]
    free = sum(default is None for default in arguments.kw_defaults)
    return Signature(
        required=len(positional) - len(arguments.defaults) + free,
        positional=len(positional),
        named=frozenset((*positional, *(argument.arg for argument in arguments.kwonlyargs))),
        is_async=isinstance(function, ast.AsyncFunctionDef),
    )


def answered() -> dict[str, list[Signature]]:
    """What some actor of a run answers, by the method's name."""
    found: dict[str, list[Signature]] = {}
    for name, file in ACTORS.items():
        text = (RUNTIME / file).read_text()
        own = methods(text, name)
        if name in HELD:
            path, held = HELD[name]
            theirs = methods((ROOT / path).read_text(), held)
            own |= {call: theirs[call] for call in named_calls(text, name)}
        for method, function in own.items():
            found.setdefault(method, []).append(signature(function))
    return found


def calls_in(path: str, text: str) -> Iterator[Call]:
    for node in ast.walk(ast.parse(text)):
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
            continue
        where, function, arguments = f"{path}:{node.lineno}", node.func, node.args
        named = frozenset(keyword.arg for keyword in node.keywords if keyword.arg)
        if function.attr == "remote" and isinstance(function.value, ast.Attribute):
            method = function.value.attr
        elif function.attr in BY_NAME and arguments and isinstance(arguments[0], ast.Constant):
            method, arguments, named = str(arguments[0].value), arguments[1:], named - {"deadline_s"}
        else:
            continue
        if not any(isinstance(argument, ast.Starred) for argument in arguments):
            yield Call(where=where, method=method, positional=len(arguments), named=named)


def unanswered(calls: Iterator[Call], known: Mapping[str, list[Signature]]) -> list[str]:
    return [
        f"{call.where}: {call.method}"
        for call in calls
        if not any(known_one.takes(call.positional, call.named) for known_one in known.get(call.method, []))
    ]


def test_every_call_of_the_runtime_is_answered_by_an_actor() -> None:
    files = [(str(path.relative_to(ROOT)), path.read_text()) for path in sorted(RUNTIME.rglob("*.py"))]
    calls = [call for path, text in files if not path.endswith("base/actors.py") for call in calls_in(path, text)]
    assert len(calls) > 60
    assert unanswered(iter(calls), answered()) == []


@pytest.mark.parametrize(
    "line",
    [
        "engine.generatte.remote(request)",
        "engine.generate.remote()",
        "engine.generate.remote(request, 1)",
        "store.add_group.remote(group, part=True)",
        'self._ranks.call("finish_steps", deadline_s=1.0)',
        'self._ranks.call("begin_step", deadline_s=1.0)',
    ],
)
def test_a_call_that_nobody_answers_is_found(line: str) -> None:
    assert len(unanswered(calls_in("here", line), answered())) == 1


@pytest.mark.parametrize("actor", [EngineActor, TrainerActor, ReplicaActor])
def test_an_actor_hands_on_what_its_engine_or_trainer_can_do_and_as_it_does_it(actor: type) -> None:
    """An async method answered by a plain one would hand Ray a coroutine; a misspelt one would fail at its first call."""
    path, held = HELD[actor.__name__]
    theirs = {name: signature(found) for name, found in methods((ROOT / path).read_text(), held).items()}
    names = named_calls((RUNTIME / ACTORS[actor.__name__]).read_text(), actor.__name__)
    assert names
    assert names <= theirs.keys()
    assert {theirs[name].is_async for name in names} == {actor is EngineActor}


class Held:
    """Instead of an engine or a trainer."""

    def __init__(self, error: Exception | None = None) -> None:
        self.error = error
        self.calls: list[object] = []

    def accumulate(self, sequences: tuple[int, ...]) -> int:
        self.calls.append(sequences)
        if self.error is not None:
            raise self.error
        return len(sequences)

    def digest(self) -> str:
        return "same"

    def close(self) -> None:
        self.calls.append("close")


def test_a_trainer_rank_notes_its_work_even_when_it_fails() -> None:
    rank, held = TrainerActor(), Held(ValueError("no"))
    vars(rank)["_trainer"] = held
    with pytest.raises(ValueError, match="no"):
        rank.accumulate((1, 2))  # type: ignore[attr-defined]
    assert rank.digest() == "same"  # type: ignore[attr-defined]
    assert [span.name for span in rank.spans(0.0)] == ["accumulate"], "a digest is no work of a step"


def test_a_replica_that_fails_cuts_its_connection_first() -> None:
    rank, held = ReplicaActor(None), Held(ValueError("no"))
    vars(rank)["_replica"] = held
    with pytest.raises(ValueError, match="no"):
        rank.accumulate((1, 2))  # type: ignore[attr-defined]
    assert held.calls == [(1, 2), "close"]
