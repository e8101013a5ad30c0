"""What R2E-Gym expects of an instance's tests: their statuses in the summary that pytest prints at its end, failures included."""

import json
import re
from collections.abc import Mapping
from typing import Final

_COLOURS: Final = re.compile(r"\x1b\[[0-9;]*m|\\u001b\[\d+m")
_LINE: Final = re.compile(r"^(PASSED|FAILED|ERROR)\s+(.+)$", re.MULTILINE)
_HEADING: Final = "short test summary info"


def read_expected(text: str) -> dict[str, str]:
    """The field `expected_output_json`: status by test name.

    Raises:
        ValueError: it is no JSON object, or one without a test.
    """
    match json.loads(text):
        case dict() as expected:
            named = _named({str(name): str(status) for name, status in expected.items()})
            if not named:
                raise ValueError("expected_output_json names no test, so that nothing shows whether the fault is repaired")
            return named
        case other:
            raise ValueError(f"expected_output_json holds {type(other).__name__}, not an object of statuses by test name")


def read_outcomes(log: str) -> dict[str, str]:
    """Status by test name, from the last summary of the log; empty without one. Needs pytest's `-rA`."""
    _, heading, summary = _COLOURS.sub("", log).rpartition(_HEADING)
    if not heading:
        return {}
    return _named({test.partition("::")[2].replace("::", "."): status for status, test in _LINE.findall(summary)})


def _named(outcomes: Mapping[str, str]) -> dict[str, str]:
    """Without colours, reasons after ` - `, and files that could not be collected, which have no name."""
    plain = {_COLOURS.sub("", name).split(" - ")[0].strip(): status for name, status in outcomes.items()}
    return {name: status for name, status in plain.items() if name}
