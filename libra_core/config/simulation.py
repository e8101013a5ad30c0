"""Backend `simulated`: what is true, and which trajectories come."""

from pydantic import Field

from libra_core.config.base import Section
from libra_core.config.paths import InputPath, LawPath, TruthPath


class SimulationConfig(Section):
    """Virtual time. Steps, degrees and streaming are those of `training`, engines, mode, staleness, KV share and batch those of
    `rollout`. Lengths and tools are those of the law or history here, publications and the optimizer those of the truth:
    `workload`, `model`, `publication` and the length limits of `rollout` have no effect. There are no rewards."""

    truth: TruthPath = Field(default="qwen3_14b_a800", validate_default=True)
    """Step-time tables of engines and trainer: a name in `configs/study/truth` or a path."""
    workload: LawPath = Field(default="search_r1", validate_default=True)
    """Law of the trajectories (`docs/study.md`): a name in `configs/study/workloads` or a path."""
    history: InputPath | None = None
    """JSONL of recorded trajectories (as of `libra plan --history`) that are drawn again instead."""
    chunk_tokens: int = Field(default=2048, ge=1)
    """Tokens that one engine step prefills at most."""
