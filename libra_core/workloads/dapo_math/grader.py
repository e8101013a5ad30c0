"""A worker process that compares answers by computer algebra, one JSON line each way. Killed from outside when it hangs."""

import json
import resource
import sys
from typing import Final

_MAX_ADDRESS_SPACE: Final = 4 << 30


def main() -> None:
    """`["gold", "answer"]` in, `true` or `false` out; first one line when ready."""
    resource.setrlimit(resource.RLIMIT_AS, (_MAX_ADDRESS_SPACE, _MAX_ADDRESS_SPACE))
    from math_verify import parse, verify  # pulls in sympy

    say(None)
    for line in sys.stdin:
        gold, answer = json.loads(line)
        try:
            expected = parse(f"\\boxed{{{gold}}}", parsing_timeout=0)
            written = parse(f"\\boxed{{{answer}}}", parsing_timeout=0)
            say(bool(expected and written and verify(expected, written, timeout_seconds=0)))
        except (ArithmeticError, MemoryError, RecursionError, TypeError, ValueError, AttributeError):
            say(False)  # an answer that sympy cannot digest equals nothing


def say(value: bool | None) -> None:
    sys.stdout.write(json.dumps(value) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
