"""The whole calibration of this host: every engine and trainer that a run on two cores may have."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from libra_core.costs.measured import read_measured

pytestmark = [pytest.mark.integration, pytest.mark.slow]
ROOT = Path(__file__).parents[2]
_DEADLINE_S = 850.0
"""Ten minutes on a free host."""


@pytest.mark.timeout(900)
def test_a_full_calibration_ends_in_time_with_every_law_and_says_what_it_does(tmp_path: Path) -> None:
    file = tmp_path / "host.yaml"
    command = [sys.executable, "-m", "flows.cli", "calibrate", "--output", str(file), "--json"]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT, env=environment, timeout=_DEADLINE_S)
    assert done.returncode == 0, done.stderr
    profile = read_measured(file)
    assert [engine.tp for engine in profile.engines] == [1, 2]
    assert [(trainer.tp, trainer.pp) for trainer in profile.trainers] == [(1, 1), (2, 1), (1, 2)]
    assert json.loads(done.stdout.splitlines()[-1])["engines"][0]["num_cells"] == profile.engines[0].num_cells == 15
    for part in ("engine TP1: sweep 1", "engine TP2: sweep 1", "trainer TP2 PP1: sweep 1", "trainer TP1 PP2: sweep 1"):
        assert part in done.stderr
    assert profile.engines[0].law.a_s > 0
    assert all(trainer.s_per_token > 0 for trainer in profile.trainers)
    assert profile.engines[0].held_out_median_error < 0.15, "5 % on a quiet host; this test only refuses nonsense"
