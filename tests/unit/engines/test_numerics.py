from libra_core.engines.verification.numerics import within_bounds


def test_a_figure_at_its_bound_passes() -> None:
    assert within_bounds({"trainer_vs_hf_logprob": 5e-6, "roundtrip_hf": 0.0, "checkpoint_resume_identical": True})


def test_every_layout_must_keep_the_bound() -> None:
    assert not within_bounds({"grad_vs_single": {"TP2": 1e-7, "PP2": 1.1e-6}})


def test_a_claim_that_is_false_fails() -> None:
    assert not within_bounds({"checkpoint_resume_identical": False})


def test_nan_fails() -> None:
    assert not within_bounds({"roundtrip_hf": float("nan")})
