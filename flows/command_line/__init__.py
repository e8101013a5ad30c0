"""The commands of `libra` that `flows/cli.py` names, and how they print."""
