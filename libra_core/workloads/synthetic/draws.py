"""Numbers that depend on their name alone: the same in every process, thread and order of calls."""

import hashlib
from collections.abc import Sequence
from statistics import NormalDist
from typing import Final

_STEPS: Final = 2**64


def uniform(name: str) -> float:
    """In (0, 1), the ends excluded."""
    drawn = int.from_bytes(hashlib.blake2b(name.encode(), digest_size=8).digest(), "big")
    return (drawn + 0.5) / (_STEPS + 1)


def normal(name: str) -> float:
    """Of mean 0 and deviation 1."""
    return NormalDist().inv_cdf(uniform(name))


def digest(token_ids: Sequence[int]) -> str:
    """A short name for what was sampled."""
    return hashlib.blake2b(",".join(map(str, token_ids)).encode(), digest_size=8).hexdigest()
