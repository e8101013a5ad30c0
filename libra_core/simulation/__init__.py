"""Simulated backends and workloads; their truth comes from their own tables."""
