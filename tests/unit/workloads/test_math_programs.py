"""Programs that a script, and a policy that imitates it, run for generated problems."""

import contextlib
import io

import pytest

from libra_core.workloads.dapo_math.generated import generated_problem
from libra_core.workloads.dapo_math.programs import SOLVABLE, program_of


@pytest.mark.parametrize("task", SOLVABLE)
def test_programs_print_the_answer(task: str) -> None:
    for index in range(40):
        problem = generated_problem((task,), "test", index)
        program = program_of(task, problem.messages[-1].content)
        assert program is not None
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(program)
        assert printed.getvalue().strip() == problem.answer


def test_other_tasks_and_wordings_have_no_program() -> None:
    assert program_of("simple_equations", "Solve for u: 23*u + 17 = 63") is None
    assert program_of("gcd", "What divides both?") is None
