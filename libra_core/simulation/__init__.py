"""Virtual time: engines, trainer, drifting workloads, whole systems. Its truth comes from measured tables, not from `costs/`."""
