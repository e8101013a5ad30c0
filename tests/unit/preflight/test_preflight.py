"""Each defect of a host or a configuration has its line, with a remedy; a host without any has none."""

import json
import shutil
import socket
from collections import namedtuple
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from libra_core.config.loading import validate_config
from libra_core.config.models import LibraConfig
from libra_core.errors import PreflightError, ResourceError
from libra_core.preflight import data, host, preflight, servers
from libra_core.preflight.finding import Finding
from libra_core.workloads.sandbox import local

Defect = Callable[[Path, pytest.MonkeyPatch], dict[str, Any]]
Usage = namedtuple("Usage", "total used free")

QWEN3 = {
    "model_type": "qwen3",
    "num_hidden_layers": 2,
    "hidden_size": 64,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "intermediate_size": 64,
    "vocab_size": 1024,
    "max_position_embeddings": 512,
}


def config_of(root: Path, **sections: Any) -> LibraConfig:
    return validate_config({"run": {"root": str(root / "runs")}, **sections})


def model_folder(folder: Path, **changes: Any) -> str:
    """A complete one: with the embedded policy's tokenizer, and a weight file that says how long it is."""
    from libra_core.engines.warm_start.shipped import SHIPPED

    folder.mkdir()
    (folder / "config.json").write_text(json.dumps({**QWEN3, **changes}))
    shutil.copy(SHIPPED / "tokenizer.json", folder)
    header = json.dumps({"a": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}).encode()
    (folder / "model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header + bytes(4))
    return str(folder)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def failures(config: LibraConfig) -> list[Finding]:
    return [finding for finding in preflight.preflight(config) if not finding.ok]


@pytest.fixture(autouse=True)
def private_server(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("PREFECT_API_URL", "MLFLOW_TRACKING_URI"):
        monkeypatch.delenv(name, raising=False)


def test_a_host_that_lacks_nothing_has_no_failures(tmp_path: Path) -> None:
    findings = preflight.preflight(config_of(tmp_path, backend={"min_free_memory_gib": 0}))
    assert [finding.text for finding in findings if not finding.ok] == []
    assert {"disk", "memory", "ports", "prompts", "sandbox", "tokenizer", "head size"} <= {finding.name for finding in findings}


def test_a_model_folder_that_is_complete_has_no_failures(tmp_path: Path) -> None:
    assert failures(config_of(tmp_path, model={"path": model_folder(tmp_path / "model")})) == []


def _root_is_a_file(root: Path, _: pytest.MonkeyPatch) -> dict[str, Any]:
    (root / "runs").write_text("")
    return {}


def _root_is_a_link_to_nothing(root: Path, _: pytest.MonkeyPatch) -> dict[str, Any]:
    (root / "runs").symlink_to(root / "gone")
    return {}


def _disk_is_full(_: Path, patch: pytest.MonkeyPatch) -> dict[str, Any]:
    patch.setattr(host.shutil, "disk_usage", lambda folder: Usage(100, 100, 0))
    patch.setattr(host, "shared_memory", lambda config: "not looked at")
    return {}


def _shared_memory_is_small(_: Path, patch: pytest.MonkeyPatch) -> dict[str, Any]:
    real = shutil.disk_usage
    small = Usage(64 << 20, 60 << 20, 4 << 20)
    patch.setattr(host.shutil, "disk_usage", lambda folder: small if folder == host.SHARED_MEMORY else real(folder))
    return {}


def _container_is_small(root: Path, patch: pytest.MonkeyPatch) -> dict[str, Any]:
    for name, text in (("memory.max", f"{4 << 30}"), ("memory.current", f"{3 << 30}"), ("memory.stat", "inactive_file 4096\n")):
        (root / name).write_text(text)
    patch.setattr(host, "CGROUP", root)
    return {}


def _no_port(_: Path, patch: pytest.MonkeyPatch) -> dict[str, Any]:
    def refused(address: object) -> None:
        raise OSError(f"cannot listen on {address}")

    patch.setattr(host.socket, "create_server", refused)
    return {}


def _mlflow_of_the_environment_is_away(_: Path, patch: pytest.MonkeyPatch) -> dict[str, Any]:
    patch.setenv("MLFLOW_TRACKING_URI", f"http://127.0.0.1:{free_port()}")
    return {}


def _no_sandbox(_: Path, patch: pytest.MonkeyPatch) -> dict[str, Any]:
    async def complaint(*_: object) -> str:
        return "not permitted"

    patch.setattr(local, "_complaint", complaint)
    return {"workload": {"kind": "dapo_math", "python_tool": True, "generated_tasks": ["gcd"]}}


def _no_container(_: Path, patch: pytest.MonkeyPatch) -> dict[str, Any]:
    patch.setattr(data.shutil, "which", lambda program: None)
    patch.setattr(data, "files", lambda config: "not looked at")
    patch.setattr(data, "prompts", lambda config: "not looked at")
    return {"workload": {"kind": "r2e_gym", "train_files": ["a.jsonl"]}}


def _prefect_is_away(_: Path, patch: pytest.MonkeyPatch) -> dict[str, Any]:
    patch.setenv("PREFECT_API_URL", f"http://127.0.0.1:{free_port()}/api")
    return {}


def _a_shard_is_missing(root: Path, _: pytest.MonkeyPatch) -> dict[str, Any]:
    folder = Path(model_folder(root / "model"))
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"a": "part-2.safetensors"}}))
    return {"model": {"path": str(folder)}}


def _tokenizer_is_damaged(root: Path, _: pytest.MonkeyPatch) -> dict[str, Any]:
    folder = Path(model_folder(root / "model"))
    (folder / "tokenizer.json").write_text("{")
    return {"model": {"path": str(folder)}, "workload": {"kind": "synthetic"}}


def _tokenizer_is_larger(root: Path, _: pytest.MonkeyPatch) -> dict[str, Any]:
    return {"model": {"path": model_folder(root / "model", vocab_size=1000)}}


def _heads_are_small(root: Path, _: pytest.MonkeyPatch) -> dict[str, Any]:
    return {"model": {"path": model_folder(root / "model", head_dim=16)}}


def _context_is_long(root: Path, _: pytest.MonkeyPatch) -> dict[str, Any]:
    return {"model": {"path": model_folder(root / "model")}, "rollout": {"max_context_tokens": 512}}


def _degree_does_not_divide(root: Path, _: pytest.MonkeyPatch) -> dict[str, Any]:
    return {"model": {"path": model_folder(root / "model")}, "rollout": {"engines": [{"tp": 4}]}}


def _questions_are_missing(root: Path, _: pytest.MonkeyPatch) -> dict[str, Any]:
    (root / "corpus.jsonl").write_text('{"title": "a", "text": "b"}\n')
    files = {"train_files": [str(root / "none.jsonl")], "corpus": str(root / "corpus.jsonl"), "heldout_prompts": 0}
    return {"workload": {"kind": "search_r1", **files}}


def _corpus_is_missing(root: Path, _: pytest.MonkeyPatch) -> dict[str, Any]:
    (root / "questions.jsonl").write_text('{"question": "a?", "answer": "b"}\n')
    files = {"train_files": [str(root / "questions.jsonl")], "corpus": str(root / "none.jsonl"), "heldout_prompts": 0}
    return {"workload": {"kind": "search_r1", **files}}


def _retriever_is_away(root: Path, _: pytest.MonkeyPatch) -> dict[str, Any]:
    (root / "questions.jsonl").write_text('{"question": "a?", "answer": "b"}\n')
    asked = {"retriever": "http", "url": f"http://127.0.0.1:{free_port()}"}
    return {"workload": {"train_files": [str(root / "questions.jsonl")], "heldout_prompts": 0, **asked}}


def _prompts_fill_the_context(root: Path, _: pytest.MonkeyPatch) -> dict[str, Any]:
    (root / "problems.jsonl").write_text(json.dumps({"prompt": "number " * 900, "answer": "1"}) + "\n")
    return {"workload": {"kind": "dapo_math", "train_files": [str(root / "problems.jsonl")]}}


def _truth_is_missing(root: Path, _: pytest.MonkeyPatch) -> dict[str, Any]:
    return {"backend": {"kind": "simulated"}, "simulation": {"truth": str(root / "none.yaml")}}


def _law_is_missing(root: Path, _: pytest.MonkeyPatch) -> dict[str, Any]:
    return {"backend": {"kind": "simulated"}, "simulation": {"workload": str(root / "none.yaml")}}


def _scores_are_early(_: Path, __: pytest.MonkeyPatch) -> dict[str, Any]:
    return {"workload": {"kind": "r2e_gym", "test_wall_s": 90}}


def _package_is_missing(_: Path, patch: pytest.MonkeyPatch) -> dict[str, Any]:
    real = host.importlib.util.find_spec
    patch.setattr(host.importlib.util, "find_spec", lambda name: None if name == "vllm" else real(name))
    return {}


def _profile_is_missing(root: Path, _: pytest.MonkeyPatch) -> dict[str, Any]:
    comparisons = {
        "replanning": {"every_steps": 2},
        "elastic": {"hybrid_replicas": 1},
        "rollout": {"engines": [{"tp": 1, "count": 2}]},
    }
    return {**comparisons, "planner": {"profile": str(root / "none.yaml")}}


def _no_temporary_folder(_: Path, patch: pytest.MonkeyPatch) -> dict[str, Any]:
    def none() -> str:
        raise FileNotFoundError(2, "No usable temporary directory found")

    patch.setattr(host.tempfile, "gettempdir", none)
    return {}


def _tasks_cannot_be_kept(_: Path, patch: pytest.MonkeyPatch) -> dict[str, Any]:
    patch.setattr(data.os, "access", lambda *_: False)
    return {"workload": {"kind": "r2e_gym", "prepared": "/proc/none"}}


@pytest.mark.parametrize(
    ("name", "defect", "said"),
    [
        ("run root", _root_is_a_file, "is a file"),
        ("run root", _root_is_a_link_to_nothing, "gone, where nothing is"),
        ("run root", lambda root, _: {"run": {"root": str(root / ("x" * 300))}}, "cannot be written (File name too long)"),
        ("run root", lambda *_: {"run": {"root": "/proc/self/x"}}, "cannot be written"),
        ("disk", _disk_is_full, "0.0 GiB free"),
        ("resume", lambda root, _: {"run": {"root": str(root), "resume": str(root / "none")}}, "to resume"),
        ("prefect", _prefect_is_away, "no Prefect (PREFECT_API_URL) answers"),
        ("mlflow", _mlflow_of_the_environment_is_away, "no MLflow (MLFLOW_TRACKING_URI) answers"),
        ("mlflow", lambda *_: {"tracking": {"mlflow_uri": f"http://127.0.0.1:{free_port()}"}}, "no MLflow"),
        ("simulation", _truth_is_missing, "cannot read the truth table"),
        ("simulation", _law_is_missing, "cannot read the workload"),
        ("packages", _package_is_missing, "vllm is not installed"),
        ("packages", lambda *_: {"rollout": {"kv_transfer": "NixlConnector"}}, "the package nixl is not installed"),
        ("planner", _profile_is_missing, "none.yaml"),
        ("disk", _no_temporary_folder, "no folder for temporary files"),
        ("data", _tasks_cannot_be_kept, "workload.prepared"),
        ("devices", lambda *_: {"backend": {"kind": "gpu"}}, "needs 2 GPUs"),
        ("model", lambda root, _: {"model": {"path": str(root / "none")}}, "does not exist"),
        ("model", _a_shard_is_missing, "lacks the weight shard part-2"),
        ("model", _context_is_long, "must be below the 512 positions"),
        ("model", _degree_does_not_divide, "tp = 4 does not divide"),
        ("head size", _heads_are_small, "have size 16"),
        ("head size", lambda *_: {"model": {"tiny": {"hidden_size": 64}}}, "have size 16"),
        ("memory", lambda *_: {"backend": {"min_free_memory_gib": 1e6}}, "of memory are free"),
        ("memory", lambda *_: {"rollout": {"kv_cache_mib": 10**7}}, "of memory are free"),
        ("memory", _container_is_small, "1.0 GiB of memory are free"),
        ("shared memory", _shared_memory_is_small, "4 MiB free"),
        ("ports", _no_port, "no port of 127.0.0.1"),
        ("ray", lambda *_: {"backend": {"ray_address": f"127.0.0.1:{free_port()}"}}, "no Ray cluster answers"),
        ("data", _questions_are_missing, "no data file at"),
        ("data", _corpus_is_missing, "no corpus at"),
        ("tokenizer", _tokenizer_is_damaged, "is not a tokenizer"),
        ("tokenizer", _tokenizer_is_larger, "has 1024 tokens, and the model's embedding 1000 rows"),
        ("prompts", _prompts_fill_the_context, "none of 1 training prompts leaves room"),
        ("sandbox", _no_sandbox, "cannot isolate commands"),
        ("sandbox", _no_container, "docker is not installed"),
        ("sandbox", _scores_are_early, "must exceed workload.test_wall_s"),
        ("retriever", _retriever_is_away, "no retriever http"),
    ],
)
def test_each_defect_has_its_line_and_a_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, defect: Defect, said: str
) -> None:
    changes = defect(tmp_path, monkeypatch)
    finding_of = {finding.name: finding for finding in failures(config_of(tmp_path, **changes))}
    assert said in finding_of[name].sentence
    assert finding_of[name].remedy


def test_a_run_is_refused_with_every_failure_at_once(tmp_path: Path) -> None:
    config = config_of(tmp_path, backend={"min_free_memory_gib": 1e6}, tracking={"mlflow_uri": f"http://127.0.0.1:{free_port()}"})
    with pytest.raises(PreflightError, match=r"no MLflow.* Also: .*of memory are free"):
        preflight.require_ready(config)
    assert PreflightError.exit_code == ResourceError.exit_code == 2


def test_a_configuration_that_passed_is_not_looked_at_again_by_the_same_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = config_of(tmp_path, backend={"kind": "simulated"})
    preflight.require_ready(config)
    monkeypatch.setattr(preflight, "preflight", lambda config: pytest.fail("looked again"))
    preflight.require_ready(config)


def test_a_proxy_is_not_asked_for_servers_of_this_host(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
        answer = _answering_once(server)
        servers.knock(f"http://127.0.0.1:{server.getsockname()[1]}/health", "server", "start it")
        answer.join(5)


def _answering_once(server: socket.socket) -> Any:
    import threading

    def answer() -> None:
        connection, _ = server.accept()
        with connection:
            connection.recv(4096)
            connection.sendall(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")

    thread = threading.Thread(target=answer, daemon=True)
    thread.start()
    return thread
