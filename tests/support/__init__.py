"""Builders and stand-ins shared by tests and benchmarks."""
