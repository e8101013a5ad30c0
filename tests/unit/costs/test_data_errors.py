"""The bounds that the cost evaluator must keep against measurements under LIBRA_DATA, which are never part of the repository."""

from pathlib import Path

import pytest

from libra_core.config.loading import data_folder
from libra_core.costs.validation.dispatch import validate

PROFILES = data_folder() / "profiles"
CASES = {
    "H100 end to end": ("h100", "end_to_end/vllm_h100.csv", {"tpot": 0.15, "ttft": 0.25}),
    "A100 training": ("a100", "training/llm_foundry_mfu_a100.csv", {"mfu": 0.15}),
    "A100 kernels": ("a100", "gpu_kernels/a100_sxm", {"all_kernels": 0.08}),
    "H100 kernels": ("h100", "gpu_kernels/h100_sxm", {"all_kernels": 0.08}),
    "engine on CPU": ("cpu", "vllm_cpu_profile.csv", {"decode_step m10_0 float32": 0.05}),
}


@pytest.mark.parametrize("case", CASES)
def test_median_errors_stay_below_their_bounds(case: str) -> None:
    device, name, bounds = CASES[case]
    file = PROFILES / name
    if not file.exists():
        pytest.skip(f"no measurements at {file}; set LIBRA_DATA to a folder that holds profiles/")
    figures = {item.quantity: item for item in validate(device, file).figures}
    for quantity, bound in bounds.items():
        found = figures[quantity]
        assert found.rows >= 12
        assert found.bound == bound
        assert found.median_abs_error <= bound


def test_a_file_of_the_same_form_is_taken_for_a_device_without_measurements(tmp_path: Path) -> None:
    columns = (
        "backend,mode,model_path,precision,silicon_data_source,pp_size,tp_size,batch_size,isl,osl,silicon_ttft_ms,silicon_tpot_ms"
    )
    file = tmp_path / "h200.csv"
    file.write_text(f"{columns}\nvllm,agg,Qwen/Qwen3-32B,,x,1,4,8,1024,512,126,9.0\n")
    report = validate("h200", file)
    assert (report.device, report.figures[0].quantity, report.figures[0].rows) == ("H200-SXM-141GB", "tpot", 1)
