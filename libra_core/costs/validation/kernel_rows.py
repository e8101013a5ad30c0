"""Measured kernel calls (aiconfigurator's parquet tables) in the coordinates of `kernels.py`.

Message sizes of the collectives are in elements, not bytes: at equal `message_size` the half rows take twice the int8 rows.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as parquet
from numpy.typing import NDArray
from pyarrow import ArrowException

from libra_core.costs.curves import Array, Rates
from libra_core.costs.facts import DeviceProfile
from libra_core.costs.kernels import (
    FP8_SPEEDUP,
    bus_bytes,
    decode_attention_work,
    gemm_work,
    moe_work,
    prefill_attention_work,
)
from libra_core.errors import ConfigError

HELD_OUT_SHARE = 0.2
NDBool = NDArray[np.bool_]
Table = dict[str, Any]
_ELEMENT_BYTES = {"half": 2.0, "bfloat16": 2.0, "int8": 1.0}


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelRows:
    """Calls of one kernel, `[n]` each."""

    curve: str
    flops: Array
    moved: Array
    at: tuple[Array, ...]
    measured_s: Array
    shape_id: Array
    """Rows with one id share a shape; a held-out split never separates them."""

    def rates(self, device: DeviceProfile) -> Rates:
        if self.curve in ("all_reduce_graph", "all_reduce", "all_gather", "reduce_scatter", "all_to_all"):
            return Rates(flops=1.0, bytes_per_s=device.intra.bytes_per_s)
        speedup = FP8_SPEEDUP if self.curve == "gemm_fp8" else 1.0
        return Rates(flops=speedup * device.peak_flops, bytes_per_s=device.memory_bytes_per_s)

    def held_out(self) -> NDBool:
        """Mask `[n]`: one shape in five, chosen by a fixed seed; fit and validation agree on it."""
        shapes = np.unique(self.shape_id)
        chosen = np.random.default_rng(0).random(shapes.size) < HELD_OUT_SHARE
        return np.isin(self.shape_id, shapes[chosen])

    def select(self, mask: NDBool) -> "KernelRows":
        return KernelRows(
            curve=self.curve,
            flops=self.flops[mask],
            moved=self.moved[mask],
            at=tuple(axis[mask] for axis in self.at),
            measured_s=self.measured_s[mask],
            shape_id=self.shape_id[mask],
        )


def read_kernels(folder: Path, device: str) -> Iterator[KernelRows]:
    """Rows of one device in every table under `folder` that a curve exists for.

    Args:
        device: what the `device` column of the table contains, for example `A100`.

    Raises:
        ConfigError: when there is no table, or none of this device.
    """
    others: set[str] = set()
    has_rows = False
    for name, reader in _READERS.items():
        for file in sorted(folder.rglob(f"{name}.parquet")):
            table = _table(file)
            if "device" not in table:
                raise ConfigError(f"{file} has no column device; it is no table of kernels")
            own = np.array([device.lower() in str(value).lower() for value in table["device"]])
            others.update(str(value) for value in np.unique(table["device"][~own].astype(str)))
            if own.any():
                has_rows = True
                try:
                    yield from reader(_where(table, own))
                except KeyError as missing:
                    raise ConfigError(f"{file} lacks the column or value {missing}; it is no table of {name}") from None
    if not has_rows and others:
        raise ConfigError(f"{folder} was measured on {', '.join(sorted(others))}, not on {device}")
    if not has_rows:
        raise ConfigError(f"{folder} holds none of {', '.join(f'{name}.parquet' for name in _READERS)}")


def _table(file: Path) -> Table:
    try:
        table = parquet.read_table(file)
    except (OSError, ArrowException) as error:
        raise ConfigError(f"cannot read the kernel table {file}: {str(error).splitlines()[0][:200]}") from None
    columns = {}
    for name in table.column_names:
        values = table[name].to_numpy()
        columns[name] = values.astype(np.float64) if values.dtype.kind in "iuf" else values
    return columns


def _where(table: Table, mask: NDBool) -> Table:
    return {name: values[mask] for name, values in table.items()}


def _shape_ids(*columns: Array) -> Array:
    stacked = np.stack(columns, axis=1)
    return np.unique(stacked, axis=0, return_inverse=True)[1].ravel().astype(np.float64)


def _gemm(table: Table) -> Iterator[KernelRows]:
    for dtype, curve, size in (("bfloat16", "gemm_bf16", 2.0), ("fp8", "gemm_fp8", 1.0)):
        rows = _where(table, (table["gemm_dtype"] == dtype) & (table["n"] >= 128) & (table["k"] >= 128))
        if rows["m"].size:
            m, n, k = rows["m"], rows["n"], rows["k"]
            flops, moved = gemm_work(m, n, k, size)
            yield KernelRows(
                curve=curve,
                flops=flops,
                moved=moved,
                at=(m, n, k),
                measured_s=rows["latency"] / 1e3,
                shape_id=_shape_ids(n, k),
            )


def _plain_attention(table: Table) -> Table:
    """BF16 cache, 128-wide heads, no sliding window: what the supported models use."""
    mask = (table["kv_cache_dtype"] == "bfloat16") & (table["head_dim"] == 128)
    if "window_size" in table:
        mask &= table["window_size"] == 0
    return _where(table, mask)


def _decode_attention(table: Table) -> Iterator[KernelRows]:
    rows = _plain_attention(table)
    rows = _where(rows, rows["num_heads"] >= rows["num_key_value_heads"])
    batch, heads, groups, context = rows["batch_size"], rows["num_heads"], rows["num_key_value_heads"], rows["step"] + 1
    flops, moved = decode_attention_work(batch, heads, groups, context)
    yield KernelRows(
        curve="decode_attention",
        flops=flops,
        moved=moved,
        at=(batch * groups, context, heads / groups),
        measured_s=rows["latency"] / 1e3,
        shape_id=_shape_ids(batch, heads, groups),
    )


def _prefill_attention(table: Table) -> Iterator[KernelRows]:
    rows = _plain_attention(table)
    batch, heads, groups, tokens = rows["batch_size"], rows["num_heads"], rows["num_key_value_heads"], rows["isl"]
    flops, moved = prefill_attention_work(batch, heads, groups, tokens)
    yield KernelRows(
        curve="prefill_attention",
        flops=flops,
        moved=moved,
        at=(batch * heads, tokens),
        measured_s=rows["latency"] / 1e3,
        shape_id=_shape_ids(batch, heads, groups),
    )


def _moe(table: Table) -> Iterator[KernelRows]:
    plausible = (table["moe_tp_size"] <= 8) & (table["moe_ep_size"] <= 8) & (table["inter_size"] / table["moe_tp_size"] >= 96)
    rows = _where(table, plausible & (table["moe_dtype"] == "bfloat16"))
    ffn, share = rows["inter_size"] / rows["moe_tp_size"], 1.0 / rows["moe_ep_size"]
    flops, moved = moe_work(rows["num_tokens"], rows["hidden_size"], ffn, rows["topk"], rows["num_experts"], local_share=share)
    yield KernelRows(
        curve="moe",
        flops=flops,
        moved=moved,
        at=(rows["num_tokens"] * rows["topk"] / rows["num_experts"], ffn, rows["num_experts"] * share),
        measured_s=rows["latency"] / 1e3,
        shape_id=_shape_ids(rows["hidden_size"], ffn, rows["num_experts"], share),
    )


def _collective_rows(curve: str, rows: Table, element_bytes: Array) -> KernelRows:
    size, degree = rows["message_size"] * element_bytes, rows["num_gpus"]
    return KernelRows(
        curve=curve,
        flops=np.zeros_like(size),
        moved=bus_bytes(curve, size, degree),
        at=(size, degree),
        measured_s=rows["latency"] / 1e3,
        shape_id=_shape_ids(rows["message_size"], degree),
    )


def _nccl(table: Table) -> Iterator[KernelRows]:
    names = {"all_reduce": "all_reduce", "all_gather": "all_gather", "reduce_scatter": "reduce_scatter", "alltoall": "all_to_all"}
    for operation, curve in names.items():
        rows = _where(table, table["op_name"] == operation)
        yield _collective_rows(curve, rows, np.array([_ELEMENT_BYTES[dtype] for dtype in rows["nccl_dtype"]]))


def _custom_all_reduce(table: Table) -> Iterator[KernelRows]:
    rows = _where(table, table["backend"] == "vllm_graph")
    yield _collective_rows("all_reduce_graph", rows, np.full(rows["latency"].shape, 2.0))


_READERS: dict[str, Callable[[Table], Iterator[KernelRows]]] = {
    "gemm_perf": _gemm,
    "generation_attention_perf": _decode_attention,
    "context_attention_perf": _prefill_attention,
    "moe_perf": _moe,
    "nccl_perf": _nccl,
    "custom_allreduce_perf": _custom_all_reduce,
}
