"""Repairing repositories: a shell, an editor and Python in a sandbox; hidden tests decide."""
