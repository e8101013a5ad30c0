"""Measuring this host's engine and trainer for the cost evaluator (`libra calibrate`)."""
