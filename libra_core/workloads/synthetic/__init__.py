"""A workload without a task: what the policy samples decides turns, waits and rewards by known laws."""
