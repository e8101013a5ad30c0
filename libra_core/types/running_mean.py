"""Of the running mean of final contexts, by which the runtime's ledger and the simulation's kernel promise cache alike."""

NEWEST_WEIGHT = 0.02
"""Weight of the newest trajectory."""
