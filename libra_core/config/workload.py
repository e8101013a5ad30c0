"""Workloads: what is asked, which tools answer, how it is scored."""

from typing import Annotated, Any, Literal

from pydantic import Discriminator, Field, Tag

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


class SyntheticConfig(Section):
    """No task: turns, tool waits and rewards of known laws, drawn from what the policy samples. Measures scheduling.

    The laws hold for a policy with random weights, which `model.path` unset makes: a taught one prefers some tokens. Raise
    `rollout.max_turns`, `max_new_tokens` and `max_context_tokens` to a few times the means, or they cut the tail.
    """

    kind: Literal["synthetic"] = "synthetic"
    prompt_tokens: int = Field(default=32, ge=1)
    turn_tokens: float = Field(default=6.0, ge=1)
    """Mean generated tokens per turn (geometric); one token in so many of the vocabulary ends a turn."""
    turns: float = Field(default=6.0, ge=1)
    """Mean turns per trajectory (geometric); all but the last end in a tool call."""
    tool_tokens: int = Field(default=8, ge=0)
    """Tokens that a tool returns."""
    tool_wait_s: float = Field(default=0.2, ge=0)
    """Median wait for a tool (log-normal)."""
    tool_wait_sigma: float = Field(default=1.0, ge=0)
    """Standard deviation of the wait's natural logarithm."""
    tool_wait_prompt_share: float = Field(default=0.3, ge=0, le=1)
    """Share of that variance that belongs to the prompt: all tools of a slow prompt are slow."""
    heldout_prompts: int = Field(default=0, ge=0)
    """Prompts outside the training stream, scored at the end of a run; 0 scores none."""


_DEFAULT_KIND = "search_r1"


def _kind_of(value: Any) -> str:
    kind = value.get("kind", _DEFAULT_KIND) if isinstance(value, dict) else getattr(value, "kind", _DEFAULT_KIND)
    return str(kind)


WorkloadConfig = Annotated[
    Annotated[SearchR1Config, Tag("search_r1")] | Annotated[SyntheticConfig, Tag("synthetic")], Discriminator(_kind_of)
]
"""A section without `kind` is `search_r1`."""
