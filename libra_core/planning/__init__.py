"""Global resource planner: the training tree, the rollout partition and the joint search. No I/O, no clock (docs/planner.md)."""
