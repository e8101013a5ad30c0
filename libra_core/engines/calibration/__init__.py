"""Measuring this host's engine for the cost evaluator (`libra calibrate`)."""
