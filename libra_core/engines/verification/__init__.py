"""Do sampler, trainer and a plain reference agree? What `libra verify numerics` runs."""
