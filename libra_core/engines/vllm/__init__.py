"""The real rollout engine. Import `engine` only in a process started with `spec.process_environment`."""
