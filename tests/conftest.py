"""For all tests."""

from hypothesis import settings

settings.register_profile("libra", deadline=None)
"""No time limit for a single example: the machine is shared, and a pause of it is no fault of the code."""
settings.load_profile("libra")
