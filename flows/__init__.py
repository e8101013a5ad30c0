"""Prefect flows and the `libra` command above them."""
