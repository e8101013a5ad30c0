"""What a run needs, looked at before anything that takes long: `libra doctor`, `libra train` and served runs ask the same."""
