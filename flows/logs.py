"""Prefect's logs beside the sentences of expected ends."""

import logging

from libra_core.errors import LibraError

_RUN_LOGGERS = ("prefect.flow_runs", "prefect.task_runs")
_ENGINE_LOGGER = "prefect.engine"
"""Says once more, into the terminal of `libra serve`, how the process of a run ended."""

_RUNNERS_PROCESSES = "prefect.runner.process_manager"


def leave_errors_to_the_command_line() -> None:
    """Keep tracebacks of expected ends out of the terminal: the command line says them in one sentence.

    Prefect's server still gets them. Call it after Prefect has set its logging up.
    """
    for handler in logging.getLogger().handlers:
        handler.addFilter(is_unexpected)


def in_one_sentence() -> None:
    """Of what was asked for and cannot be, a run's log shows the sentence and no traceback, in Prefect's UI as in a terminal."""
    for name in (*_RUN_LOGGERS, _ENGINE_LOGGER):
        logger = logging.getLogger(name)
        if without_traceback not in logger.filters:
            logger.addFilter(without_traceback)


def without_traceback(record: logging.LogRecord) -> bool:
    """Keeps every record; changes that of a refusal."""
    error = record.exc_info[1] if record.exc_info else None
    if isinstance(error, LibraError) and error.exit_code == LibraError.exit_code:
        record.msg, record.args, record.exc_info, record.exc_text = str(error), (), None, None
    return True


def is_unexpected(record: logging.LogRecord) -> bool:
    """False for the errors of a run that ends by a `LibraError`, an interrupt or a termination, and for its final states."""
    error = record.exc_info[1] if record.exc_info else None
    if error is None:
        return not (record.levelno >= logging.ERROR and record.name.startswith(_RUN_LOGGERS))
    return isinstance(error, Exception) and not isinstance(error, LibraError)


def a_process_that_is_gone_has_ended() -> None:
    """At its end Prefect's runner kills each run's process a second time, and reports that there is none."""
    logging.getLogger(_RUNNERS_PROCESSES).addFilter(_is_about_a_process)


def _is_about_a_process(record: logging.LogRecord) -> bool:
    return not (record.exc_info and isinstance(record.exc_info[1], ProcessLookupError))
