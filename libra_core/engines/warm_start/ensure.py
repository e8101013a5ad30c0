"""The embedded policy: from the cache, from Libra's own files, or made now. Loads torch only to make it."""

import time
from collections.abc import Callable
from pathlib import Path

from libra_core.config.models import LibraConfig
from libra_core.engines.warm_start.cache import cache_folder, exclusive, made_whole
from libra_core.engines.warm_start.result import WarmStartResult, is_whole, read_result
from libra_core.engines.warm_start.shipped import is_shipped, unpack
from libra_core.errors import ConfigError

Report = Callable[[str, float], None]
"""Told what is being done and the share of all work that is done, 0..1."""


def ensure_policy(config: LibraConfig, report: Report, *, take_shipped: bool = True) -> WarmStartResult:
    """Return the warm-started policy of this configuration, making it (minutes) if there is none.

    Waits while another process makes the same policy. Only for `model.path` unset. Without `take_shipped` it is made although
    Libra brings it.

    Raises:
        ConfigError: when the workload has nothing to teach, or is not asked to.
        NumericsError: when the base success cannot be brought into its window; nothing is cached then.
        DeadlineError: when another process holds the cache for too long.
    """
    searches, tool_steps = config.workload.kind == "search_r1", config.model.warm_start.tool_steps
    if searches and tool_steps:
        raise ConfigError(
            f"model.warm_start.tool_steps = {tool_steps} is not for search_r1, which clean_steps teach; leave it out"
        )
    if not searches and not tool_steps:
        raise ConfigError(
            f"workload.kind = {config.workload.kind} starts from random weights unless model.warm_start.tool_steps is above 0"
        )
    started_s = time.monotonic()
    folder = cache_folder(config)
    if not is_whole(folder):
        with exclusive(folder, report):
            if not is_whole(folder):
                shipped = take_shipped and is_shipped(config)
                with made_whole(folder) as scratch:
                    if shipped:
                        unpack(scratch)
                    else:
                        _make(config, scratch, report)
                return read_result(folder, cached=shipped, seconds=time.monotonic() - started_s)
    report("the warm-started policy is there", 1.0)
    return read_result(folder, cached=True, seconds=time.monotonic() - started_s)


def _make(config: LibraConfig, scratch: Path, report: Report) -> None:
    if config.workload.kind == "search_r1":
        from libra_core.engines.warm_start.make import make_search_policy

        make_search_policy(config, scratch, report)
    else:
        from libra_core.engines.warm_start.tools import make_tool_policy

        make_tool_policy(config, scratch, report)
