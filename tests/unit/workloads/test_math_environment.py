"""What earns a reward in mathematics: the policy's own last answer, and nothing else."""

import asyncio

import pytest

from libra_core.config.workload import DapoMathConfig
from libra_core.types.ids import PromptId
from libra_core.types.trajectory import Prompt
from libra_core.workloads.chat import Chat, ChatMessage
from libra_core.workloads.dapo_math.environment import DapoMathEnvironment
from support.search_worlds import CODEC, trajectory

END = "<|im_end|>"


def score(*parts: tuple[str, int], asked: str = "What is 6 * 7?", **settings: float) -> float:
    environment = DapoMathEnvironment(CODEC, DapoMathConfig(**settings), max_new_tokens=100, sandboxes=None)  # type: ignore[arg-type]
    token_ids = Chat(CODEC).prompt((ChatMessage(role="user", content=asked),))
    prompt = Prompt(prompt_id=PromptId("p"), token_ids=token_ids, text=asked, answers=("42",))
    return asyncio.run(environment.score(prompt, trajectory(*parts, asked=prompt)))


def test_the_last_answer_of_the_last_turn_earns_one() -> None:
    assert score((f"\\boxed{{41}}, no, \\boxed{{42}}{END}", 1)) == 1.0
    assert score((f"\\boxed{{42}}, no, \\boxed{{41}}{END}", 1)) == 0.0


@pytest.mark.parametrize("said", ["", "I do not know.", "\\boxed{42", "42", "\\boxed{}", "x" * 100_000, "\x00\ufffd"])
def test_no_answer_is_worth_the_wrong_reward(said: str) -> None:
    assert score((f"{said}{END}", 1), wrong_reward=-1.0) == -1.0


def test_an_answer_in_the_question_or_from_a_tool_earns_nothing() -> None:
    assert score((f"Yes.{END}", 1), asked="Is it \\boxed{42}?") == 0.0
    assert score(("call", 1), ("\\boxed{42}", 0), (f"Done.{END}", 1)) == 0.0
    assert score((f"\\boxed{{42}}{END}", 1), ("42\n[exit code 0]", 0)) == 0.0
