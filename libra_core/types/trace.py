"""Lanes of the picture of a run."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceSpan:
    """Something that happened in one lane, in unix seconds."""

    name: str
    lane: str
    start_s: float
    end_s: float
