"""Frozen values that flow between the rooms. Standard library only."""
