"""Prefect tasks: each connects to the session, makes one call and returns a small report."""
