"""Prefect flows and the `libra` command above them."""

from libra_core.surroundings import children_write_any_text, have_a_home, print_in_a_width, reach_own_host_directly

# Here, since runs that Prefect starts import a flow first and no command; clients read the variables when they are made.
reach_own_host_directly()
children_write_any_text()
print_in_a_width()
have_a_home()
