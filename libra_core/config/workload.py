"""Workloads: what is asked, which tools answer, how it is scored."""

from typing import Literal

from pydantic import Field

from libra_core.config.base import Section


class SearchR1Config(Section):
    """Search-R1: `<search>`, `<information>`, `<answer>` turns over a BM25 index of passages."""

    kind: Literal["search_r1"] = "search_r1"
    two_hop_share: float = Field(default=0.5, ge=0, le=1)
    top_k: int = Field(default=1, ge=1)
    max_passage_tokens: int = Field(default=96, ge=8)
    heldout_share: float = Field(default=0.2, ge=0, lt=1)
    """Share of the real facts never seen in the warm start."""
    heldout_prompts: int = Field(default=64, ge=0)
    """Held-out questions scored at the end of a run; 0 scores none."""


WorkloadConfig = SearchR1Config
