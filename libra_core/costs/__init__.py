"""Cost evaluator: what a layout takes in seconds and bytes, from device profiles and model facts (docs/costs.md)."""
