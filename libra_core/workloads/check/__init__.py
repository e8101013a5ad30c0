"""Runs a workload without a model, to see that its tools and rewards work before anything is trained."""
