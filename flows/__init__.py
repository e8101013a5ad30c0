"""Prefect flows and the `libra` command above them."""

from libra_core.surroundings import children_write_any_text, reach_own_host_directly

# Here, since runs that Prefect starts import a flow first and no command; clients read the variables when they are made.
reach_own_host_directly()
children_write_any_text()
