import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[3]


def _locked() -> dict[str, str]:
    lines = (ROOT / "requirements" / "cpu.lock").read_text().splitlines()
    pins = [line.split("==") for line in lines if "==" in line and not line.startswith("#")]
    return {re.sub(r"[-_.]+", "-", name).lower(): version for name, version in pins}


def test_lock_leaves_out_what_breaks_beside_cpu_torch() -> None:
    assert not {"torchvision", "torchaudio", "torchcodec", "triton"} & _locked().keys()


def test_lock_pins_torch_without_a_local_version() -> None:
    assert _locked()["torch"] == "2.13.0"


def test_every_direct_dependency_is_locked() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    wanted = [*project["dependencies"], *extras["cpu"], *extras["dev"], *extras["embedding"]]
    names = {re.sub(r"[-_.]+", "-", re.split(r"[\[<>=~ ]", text)[0]).lower() for text in wanted}
    assert names - _locked().keys() == set()
