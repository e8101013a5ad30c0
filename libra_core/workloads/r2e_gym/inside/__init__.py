"""Scripts of the standard library alone that run inside a sandbox, where Libra is not installed."""
