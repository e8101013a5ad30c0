from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as parquet
import pytest

from libra_core.costs.api import load_device
from libra_core.costs.kernels import Kernels
from libra_core.costs.least_squares import nonnegative_fit
from libra_core.costs.validation.dispatch import validate
from libra_core.costs.validation.kernel_rows import read_kernels
from libra_core.errors import ConfigError

SERVED = (
    "backend,mode,model_path,precision,silicon_data_source,pp_size,tp_size,batch_size,isl,osl,silicon_ttft_ms,silicon_tpot_ms"
)
TRAINED = "model,seq_len,gpu,precision,n_gpus,micro_bs,grad_accum,act_ckpt,act_offload,mfu,tokens_s_gpu"


def write_lines(file: Path, *lines: str) -> Path:
    file.write_text("\n".join(lines) + "\n")
    return file


def write_gemm(folder: Path, device: str, rows: Sequence[Mapping[str, Any]]) -> Path:
    full = [{"device": device, "gemm_dtype": "bfloat16", **row} for row in rows]
    parquet.write_table(pa.Table.from_pylist(full), folder / "gemm_perf.parquet")
    return folder


def gemm_rows(factor: float) -> list[dict[str, float]]:
    kernels = Kernels(load_device("a100"))
    shapes = [(m, n, k) for m in (1, 64, 1024) for n in (512, 4096, 8192) for k in (1024, 5120)]
    return [{"m": m, "n": n, "k": k, "latency": factor * 1e3 * float(kernels.gemm_s(m, n, k)[0])} for m, n, k in shapes]


def test_kernels_that_follow_the_curves_have_no_error(tmp_path: Path) -> None:
    report = validate("a100", write_gemm(tmp_path, "NVIDIA A100-SXM4-80GB", gemm_rows(1.0)))
    assert report.kind == "kernels"
    assert report.figures[-1].quantity == "all_kernels"
    assert report.figures[-1].median_abs_error < 1e-3


def test_kernels_twice_as_slow_break_the_bound(tmp_path: Path) -> None:
    report = validate("a100", write_gemm(tmp_path, "NVIDIA A100-SXM4-80GB", gemm_rows(2.0)))
    assert report.figures[-1].median_error == pytest.approx(-0.5, abs=1e-3)
    assert report.as_json()["within"] is False


def test_kernels_of_another_device_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="measured on NVIDIA H100"):
        validate("a100", write_gemm(tmp_path, "NVIDIA H100 80GB HBM3", gemm_rows(1.0)))


def test_held_out_rows_share_no_shape_with_the_others(tmp_path: Path) -> None:
    rows = next(iter(read_kernels(write_gemm(tmp_path, "NVIDIA A100", gemm_rows(1.0)), "A100")))
    held_out = rows.held_out()
    assert not set(rows.shape_id[held_out]) & set(rows.shape_id[~held_out])


def test_collective_sizes_are_elements(tmp_path: Path) -> None:
    row = {"device": "NVIDIA A100", "op_name": "all_reduce", "num_gpus": 8, "message_size": 1024, "latency": 0.02}
    parquet.write_table(pa.Table.from_pylist([{**row, "nccl_dtype": "half"}]), tmp_path / "nccl_perf.parquet")
    rows = [item for item in read_kernels(tmp_path, "A100") if item.measured_s.size]
    assert rows[0].at[0].tolist() == [2048.0]


def test_end_to_end_rows_are_sorted_into_comparable_and_not(tmp_path: Path) -> None:
    file = write_lines(
        tmp_path / "served.csv",
        SERVED,
        "vllm,agg,Qwen/Qwen3-32B,,x,1,4,8,1024,512,126,10.7",
        "vllm,agg,meta-llama/Llama-3.1-70B,fp8,x,1,8,4,1024,1024,70,9.1",
        "vllm,agg,openai/gpt-oss-120b,fp4,x,1,8,4,1024,1024,70,9.1",
        "vllm,disagg,Qwen/Qwen3-32B,fp8,x,,,,4000,1000,367,8.7",
        "vllm,agg,Qwen/Qwen3-32B,fp8,dynamo_version=0.8,1,1,24,4000,1000,294,16.8",
        "vllm,agg,Qwen/Qwen3-32B,,x,1,1,8,1024,512,126,30.7",
    )
    report = validate("h100", file)
    tpot = report.figures[0]
    assert (tpot.quantity, tpot.rows, tpot.within) == ("tpot", 3, True)
    assert set(report.left_out) == {"fp4 weights", "disaggregated serving", "Dynamo front end over several engines"}


def test_a_file_without_a_comparable_row_is_refused(tmp_path: Path) -> None:
    file = write_lines(tmp_path / "served.csv", SERVED, "vllm,agg,who/knows,,x,1,4,8,1024,512,126,10.7")
    with pytest.raises(ConfigError, match="no facts of who/knows"):
        validate("h100", file)


def test_training_rows_of_another_device_are_left_out(tmp_path: Path) -> None:
    file = write_lines(
        tmp_path / "trained.csv",
        TRAINED,
        "7b,2048,a100_80gb,amp_bf16,8,6,2,False,False,64.2,4641",
        "3b,4096,a100_80gb,amp_bf16,8,5,6,False,False,60.5,9457",
        "3b,4096,h100_80gb,amp_bf16,8,5,6,False,False,40,19457",
    )
    report = validate("a100", file)
    assert (report.figures[0].quantity, report.figures[0].rows) == ("mfu", 2)
    assert report.figures[0].within
    assert report.left_out == {"on h100_80gb": 1}


def test_an_engine_with_a_linear_law_is_forecast_exactly(tmp_path: Path) -> None:
    cells = [(batch, context) for batch in (1, 4, 16) for context in (100, 1000, 5000)]
    lines = [f"m,float32,{batch},{batch * context},{5 + 0.3 * batch + 1e-3 * batch * context}" for batch, context in cells]
    report = validate("cpu", write_lines(tmp_path / "engine.csv", "model,dtype,batch,total_ctx,cpu_ms_median", *lines))
    assert report.figures[0].median_abs_error < 1e-3


def test_an_unknown_form_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="of no known form"):
        validate("a100", write_lines(tmp_path / "x.csv", "a,b", "1,2"))


def test_the_fit_never_goes_negative() -> None:
    design = np.array([[1.0, x] for x in (1, 2, 3, 4)])
    solution, error = nonnegative_fit(design, np.array([4.0, 3.0, 2.0, 1.5]))
    assert min(solution) >= 0
    assert error > 0.1
