"""DAPO's soft punishment of length (arXiv 2503.14476, equation 13)."""


def overlong_penalty(generated_tokens: int, *, max_tokens: int, cache_tokens: int) -> float:
    """0 up to `max_tokens - cache_tokens`, falling linearly to -1 at `max_tokens`, -1 beyond."""
    over = generated_tokens - (max_tokens - cache_tokens)
    if over <= 0:
        return 0.0
    return -min(1.0, over / cache_tokens)
