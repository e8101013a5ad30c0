"""Runs commands that a policy wrote, so that nothing of them reaches the host or outlives them."""
