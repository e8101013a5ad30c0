"""The folder of a training run as the simulation replays it: its metrics, its length log, and laws for its engines."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from libra_core.config import LibraConfig
from libra_core.config.loading import load_config
from libra_core.errors import ConfigError
from libra_core.planning.history_file import read_history
from libra_core.planning.loading import trained_model
from libra_core.planning.run_costs import run_costs
from libra_core.simulation.study.recorded import RecordedRun, recorded_run
from libra_core.tracking.jsonl import read_metrics
from libra_core.tracking.lengths import FILE_NAME as LENGTHS
from libra_core.types.laws import EngineLaw
from libra_core.types.lengths import LengthRecord

RUN_CONFIG = "config.yaml"


def read_run(folder: Path) -> RecordedRun:
    """Raises `ConfigError` for a run without a length log, and for one that is too short."""
    if not (folder / LENGTHS).is_file():
        raise ConfigError(f"{folder} holds no {LENGTHS}, so its trajectories cannot be replayed; name a run that wrote one")
    config, records = load_config(folder / RUN_CONFIG, []), read_history(folder / LENGTHS)
    engines = {} if config.backend.kind == "simulated" else engine_laws(config, records)
    return recorded_run(config, read_metrics(folder), records, engines)


def engine_laws(config: LibraConfig, records: Sequence[LengthRecord]) -> dict[int, EngineLaw]:
    """By degree, as plans believe: this host's calibration where the configuration names one, else sums of kernels. What each
    prefill costs whatever its length is spread over the tokens that arrive with a turn."""
    laws = run_costs(config, trained_model(config)).engines
    prefills = max(sum(len(record.generated_tokens) for record in records), 1)
    arriving = max(sum(record.prompt_tokens + sum(record.tool_tokens) for record in records) / prefills, 1.0)
    return {
        tp: replace(law, prefill_a_s=0.0, prefill_b_s_per_token=law.prefill_b_s_per_token + law.prefill_a_s / arriving)
        for tp, law in ((group.tp, laws[group.tp]) for group in config.rollout.engines)
    }
