"""What one engine takes. Kernels, calibration, a run's own measurements and the simulated truth state the same value."""

import math
from dataclasses import dataclass, field, replace


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineLaw:
    """Linear law of one engine of some degree.

    Decode: `step_s = a + b·batch + c·context_tokens` (context of all sequences together). Prefill of n tokens on a context of
    k tokens: `a + b·n + c·n·(k + n/2)`.
    """

    a_s: float
    b_s: float
    c_s: float
    prefill_a_s: float = 0.0
    prefill_b_s_per_token: float
    prefill_c_s_per_token2: float = 0.0
    kv_tokens: int
    """Tokens of KV cache of the whole engine."""
    fit_error: float = 0.0
    """Mean absolute relative difference between the law and what it was fitted to."""
    source: str = field(default="", compare=False)
    """Where the numbers come from, for people."""

    def __post_init__(self) -> None:
        for name in ("a_s", "b_s", "c_s", "prefill_a_s", "prefill_b_s_per_token", "prefill_c_s_per_token2", "fit_error"):
            value = getattr(self, name)
            if not (0 <= value < math.inf):
                raise ValueError(f"{name} = {value} of an engine's law must be finite and at least 0; measure the engine again")

    def step_s(self, batch: float, context_tokens: float) -> float:
        """One decode step."""
        return self.a_s + self.b_s * batch + self.c_s * context_tokens

    def prefill_s(self, new_tokens: float, context_tokens: float = 0.0) -> float:
        """`new_tokens` of one sequence on top of `context_tokens` that are cached."""
        pairs = new_tokens * (context_tokens + new_tokens / 2)
        return self.prefill_a_s + self.prefill_b_s_per_token * new_tokens + self.prefill_c_s_per_token2 * pairs

    def scaled(self, decode: float, prefill: float | None = None) -> "EngineLaw":
        """The same engine, `decode` times as slow, `prefill` times in its prefills: what a comparison with measurements found."""
        reading = decode if prefill is None else prefill
        return replace(
            self,
            a_s=decode * self.a_s,
            b_s=decode * self.b_s,
            c_s=decode * self.c_s,
            prefill_a_s=reading * self.prefill_a_s,
            prefill_b_s_per_token=reading * self.prefill_b_s_per_token,
            prefill_c_s_per_token2=reading * self.prefill_c_s_per_token2,
        )
