"""Which validation a file asks for, by what it holds."""

import csv
from pathlib import Path

from libra_core.costs.profiles import load_device
from libra_core.costs.validation.report import ValidationReport
from libra_core.errors import ConfigError
from libra_core.files import read_text


def validate(device_name: str, data: Path) -> ValidationReport:
    """Compare the profile with one file or folder of measurements.

    Args:
        device_name: a name of `configs/hardware`, or the path of a profile.
        data: a folder of kernel tables (parquet), an end-to-end CSV (`silicon_tpot_ms`), a training CSV (`mfu`) or an engine
            CSV (`cpu_ms_median`).

    Raises:
        ConfigError: for an unknown device, a missing file, or one of another form.
    """
    device = load_device(device_name)
    if not data.exists():
        raise ConfigError(f"{data} does not exist")
    if data.is_dir() or data.suffix == ".parquet":
        from libra_core.costs.validation.kernel_errors import validate_kernels

        return validate_kernels(device, data if data.is_dir() else data.parent)
    columns = _columns(data)
    if "silicon_tpot_ms" in columns:
        from libra_core.costs.validation.end_to_end import validate_end_to_end

        return validate_end_to_end(device, data)
    if "mfu" in columns:
        from libra_core.costs.validation.training_rows import validate_training

        return validate_training(device, data)
    if "cpu_ms_median" in columns:
        from libra_core.costs.validation.engine_rows import validate_engine

        return validate_engine(device, data)
    raise ConfigError(f"{data} is of no known form: its columns are {', '.join(columns[:12])[:300] or 'none'}")


def _columns(file: Path) -> list[str]:
    return next(csv.reader(read_text(file, "measurements").splitlines()[:1]), [])
