"""Whole systems on whole workloads: which system does what with the same GPUs, and how sure that is."""
