"""Generators of trajectories whose laws are known."""
