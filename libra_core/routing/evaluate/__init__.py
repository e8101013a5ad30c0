"""Offline evaluation of routing policies on trajectories that are already known."""
