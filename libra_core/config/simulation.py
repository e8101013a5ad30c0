"""Backend `simulated`: what is true, and which trajectories come."""

from pydantic import Field

from libra_core.config.base import Section


class SimulationConfig(Section):
    """Virtual time. Steps, degrees and streaming are those of `training`, engines, mode, staleness, KV share and batch those of
    `rollout`. Lengths and tools are those of the law or history here, publications and the optimizer those of the truth:
    `workload`, `model`, `publication` and the length limits of `rollout` have no effect. There are no rewards."""

    truth: str = "configs/study/truth/qwen3_14b_a800.yaml"
    """Step-time tables of engines and trainer."""
    workload: str = "configs/study/workloads/search_r1.yaml"
    """Law of the trajectories (`docs/study.md`)."""
    history: str | None = None
    """JSONL of recorded trajectories (as of `libra plan --history`) that are drawn again instead."""
    chunk_tokens: int = Field(default=2048, ge=1)
    """Tokens that one engine step prefills at most."""
