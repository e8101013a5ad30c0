"""What is installed from a wheel works in an empty folder."""

import json
import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Mapping
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of packages that holds the wheel's content alone."""
    source, dist = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("dist")
    listed = subprocess.run(["git", "ls-files"], capture_output=True, text=True, check=True, cwd=ROOT).stdout.split("\n")
    for name in filter(None, listed):
        if not name.startswith("tests/") and (ROOT / name).is_file():
            (source / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, source / name)
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", str(dist), "."]
    subprocess.run(command, check=True, cwd=source, timeout=300)
    (wheel,) = dist.glob("*.whl")
    unpacked = tmp_path_factory.mktemp("site")
    zipfile.ZipFile(wheel).extractall(unpacked)
    return unpacked


def _libra(site: Path, folder: Path, *arguments: str, **environment: str) -> Mapping[str, object]:
    variables = {name: value for name, value in os.environ.items() if not name.startswith("PREFECT_")}
    variables |= {"PYTHONPATH": str(site), **environment}
    command = [sys.executable, "-m", "libra_core.launch", *arguments, "--json"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=folder, env=variables, timeout=280, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


def test_a_wheel_has_one_top_level_package(site: Path) -> None:
    assert {path.name for path in site.iterdir() if not path.name.endswith(".dist-info")} == {"libra_core"}


@pytest.mark.parametrize("config", ["r2e_gym_48gpu", "configs/experiment/simulated_48gpu.yaml"])
def test_it_plans_in_an_empty_folder(site: Path, tmp_path: Path, config: str) -> None:
    assert _libra(site, tmp_path, "plan", config)["num_gpus"] == 48
    assert list(tmp_path.iterdir()) == []


@pytest.mark.integration
def test_it_trains_simulated_in_an_empty_folder_beside_packages_of_the_same_names_and_behind_a_proxy(
    site: Path, tmp_path: Path
) -> None:
    for name in ("flows", "tasks"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text("raise RuntimeError('somebody else's package')\n".replace("else's", "elses"))
    proxy = {name: "http://127.0.0.1:9" for name in ("http_proxy", "https_proxy", "all_proxy", "HTTP_PROXY", "ALL_PROXY")}
    asked = ("--set", "backend.kind=simulated", "--set", "training.steps=3", "--set", "run.root=a root #1")
    summary = _libra(site, tmp_path, "train", *asked, **proxy, PYTHONSAFEPATH="1", PYTHONIOENCODING="ascii")
    assert summary["steps"] == 3
    assert str(summary["run_dir"]).startswith(str(tmp_path / "a root #1"))
