"""Files of measurements that are not what their name says: one sentence with file, line, value and bound."""

from pathlib import Path

import pyarrow as arrow
import pyarrow.parquet as parquet
import pytest

from libra_core.costs.validation.dispatch import validate
from libra_core.errors import ConfigError

ENGINE = "model,dtype,batch,total_ctx,cpu_ms_median"
TRAINING = "model,mfu,seq_len,n_gpus"
SERVED = (
    "mode,model_path,precision,silicon_data_source,pp_size,tp_size,batch_size,isl,osl,silicon_ttft_ms,silicon_tpot_ms\n"
    "agg,Qwen/Qwen3-32B,,x,{pp},{tp},8,1024,512,126,{tpot}"
)


@pytest.mark.parametrize(
    ("device", "text", "sentence"),
    [
        ("cpu", f"{ENGINE}\nm,float32,1,64,fast", "line 2 has cpu_ms_median = 'fast'; it must be a number above 0"),
        ("cpu", f"{ENGINE}\nm,float32,1,64,nan", "cpu_ms_median = 'nan'"),
        ("cpu", f"{ENGINE}\nm,float32,1,64,0", "above 0"),
        ("cpu", f"{ENGINE}\nm,float32,-1,64,2", "batch = '-1'; it must be a number of 0 or more"),
        ("cpu", f"{ENGINE}\nm,float32,1", "line 2 has 3 columns, the head has 5"),
        ("cpu", "cpu_ms_median\n3", "has no column model; its columns are cpu_ms_median"),
        ("cpu", ENGINE, "has no row"),
        ("a100", f"{TRAINING}\n7b,40,2048,8", "has no column"),
        ("h100", SERVED.format(pp="one", tp=4, tpot=9), "pp_size = 'one'"),
        ("h100", SERVED.format(pp=1, tp=4, tpot="inf"), "silicon_tpot_ms = 'inf'"),
        ("h100", SERVED.format(pp=1, tp=0, tpot=9), "tp_size = '0'; it must be a number above 0"),
        ("h100", "", "is of no known form: its columns are none"),
        ("h100", 'mfu,"open\n1,2', "no known form|no line of CSV|columns"),
    ],
)
def test_a_damaged_table_is_a_sentence(tmp_path: Path, device: str, text: str, sentence: str) -> None:
    file = tmp_path / "measured.csv"
    file.write_text(text)
    with pytest.raises(ConfigError, match=sentence):
        validate(device, file)


def test_a_file_that_is_not_utf_8_is_a_sentence(tmp_path: Path) -> None:
    file = tmp_path / "measured.csv"
    file.write_bytes(ENGINE.encode("utf-16"))
    with pytest.raises(ConfigError, match="save it as UTF-8"):
        validate("cpu", file)


def test_a_damaged_kernel_table_is_a_sentence(tmp_path: Path) -> None:
    file = tmp_path / "gemm_perf.parquet"
    file.write_bytes(b"no parquet")
    with pytest.raises(ConfigError, match="cannot read the kernel table"):
        validate("a100", tmp_path)
    parquet.write_table(arrow.table({"m": [1.0]}), file)
    with pytest.raises(ConfigError, match="no column device"):
        validate("a100", tmp_path)
    parquet.write_table(arrow.table({"device": ["NVIDIA A100"], "m": [1.0]}), file)
    with pytest.raises(ConfigError, match="lacks the column or value 'gemm_dtype'"):
        validate("a100", tmp_path)
