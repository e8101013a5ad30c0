"""The look at what a run needs, for every front end. Imports no Prefect unless a killed run left something."""

from contextlib import suppress
from pathlib import Path

from libra_core.config import LibraConfig
from libra_core.errors import LibraError
from libra_core.preflight.preflight import Report, require_ready
from libra_core.tracking.run_folder import read_journal
from libra_core.tracking.run_owner import owned


def check_before_start(config: LibraConfig, report: Report | None = None) -> None:
    """Refuse a start that cannot end well. A killed run that cannot go on leaves nothing on this host either.

    Raises:
        LibraError: one sentence for each thing that the run lacks.
    """
    try:
        require_ready(config, report)
    except LibraError:
        if config.run.resumed_folder is not None:
            with suppress(LibraError):  # the folder is none, damaged, or somebody's who trains it
                _clear(config.run.resumed_folder)
        raise


def _clear(run_dir: Path) -> None:
    if read_journal(run_dir).session is None:
        return
    with owned(run_dir):
        from flows.hooks import end_run_folder  # loads prefect

        end_run_folder(run_dir, "KILLED")
