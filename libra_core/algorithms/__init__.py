"""Group advantages, policy losses, KL estimators and packing: pure functions."""
