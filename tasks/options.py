"""The one decorator of all tasks."""

from functools import partial

from prefect import task
from prefect.cache_policies import NO_CACHE

core_task = partial(task, persist_result=False, cache_policy=NO_CACHE)
"""No hashing of inputs, no stored results. Never give a task tags: each would ask the server for a concurrency slot,
and a server that restarts would fail the run."""
