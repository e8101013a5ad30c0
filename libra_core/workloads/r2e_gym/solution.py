"""The known repair of a task, as a policy would make it with its tools."""

from libra_core.workloads.r2e_gym.tasks import RepairTask

_CONTEXT_LINES = 3


def view_window(task: RepairTask) -> tuple[int, int]:
    """First and last line of a look at the fault."""
    return max(1, task.line - _CONTEXT_LINES), task.line + _CONTEXT_LINES


def replacement(faulty: str, task: RepairTask) -> tuple[str, str]:
    """The faulty line and what it should be, with as many lines above as make it occur once in the file."""
    lines = faulty.split("\n")
    assert lines[task.line - 1] == task.after, f"{task.key}: line {task.line} is not the fault"
    above: list[str] = []
    for number in range(task.line - 1, -1, -1):
        old = "\n".join([*above, task.after])
        if faulty.count(old) == 1:
            return old, "\n".join([*above, task.before])
        above.insert(0, lines[number - 1])
    raise AssertionError(f"{task.key}: the whole beginning of the file occurs twice")
