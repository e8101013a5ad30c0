"""Rewards of mathematics, and Python as an optional tool."""

from collections.abc import Sequence
from typing import Final

from libra_core.config.workload import DapoMathConfig
from libra_core.ports.environment import Episode, TurnStops
from libra_core.types.trajectory import FinishReason, Prompt, ToolCall, ToolReturn, ToolStatus, Trajectory
from libra_core.workloads.calls import parse_tool_call
from libra_core.workloads.chat import Chat
from libra_core.workloads.dapo_math.answers import extract_answer
from libra_core.workloads.dapo_math.grading import GraderPool
from libra_core.workloads.dapo_math.overlong import overlong_penalty
from libra_core.workloads.episodes import WaitingEpisode
from libra_core.workloads.python_tool import PYTHON_TOOL, PythonEpisode
from libra_core.workloads.sandbox.host import SandboxHost
from libra_core.workloads.spoken import last_turn, said_aloud
from libra_core.workloads.text_codec import TextCodec
from libra_core.workloads.tool_text import tool_tokens

PYTHON_HELP: Final = (
    'You may run Python: <tool_call>{"name": "python", "arguments": {"code": "print(1 + 1)"}}</tool_call> ends your turn, and '
    "the program's output comes back."
)


class DapoMathEnvironment:
    """Implements `ports.environment.Environment`."""

    def __init__(
        self,
        codec: TextCodec,
        settings: DapoMathConfig,
        *,
        max_new_tokens: int,
        sandboxes: SandboxHost | None,
        grades_cut: bool = False,
    ) -> None:
        """`sandboxes` None: there is no tool, and every turn is the last. `grades_cut`: also what was cut at the length limit."""
        self._codec = codec
        self._chat = Chat(codec)
        self._settings = settings
        self._max_new_tokens = max_new_tokens
        self._grades_cut = grades_cut
        self._sandboxes = sandboxes
        self._graders = GraderPool(workers=settings.grade_workers, deadline_s=settings.grade_deadline_s)

    def stops(self) -> TurnStops:
        return TurnStops(token_ids=self._chat.end_ids)

    def parse_call(self, turn_token_ids: Sequence[int]) -> ToolCall | None:
        return parse_tool_call(self._chat.said(turn_token_ids)) if self._sandboxes else None

    async def reset(self, prompt: Prompt) -> Episode:
        if self._sandboxes is None:
            return WaitingEpisode(self._refuse)
        return PythonEpisode(await self._sandboxes.open(lambda folder: None), self._answer)

    def answer_failure(self, call: ToolCall, status: ToolStatus) -> ToolReturn:
        return self._answer(call, status, "No answer came in time.", 0.0)

    async def score(self, prompt: Prompt, trajectory: Trajectory) -> float:
        """`correct_reward` when the last turn's answer equals the problem's, else `wrong_reward`; less the overlong penalty."""
        is_cut = trajectory.finish_reason is FinishReason.LENGTH and not self._grades_cut
        answer = None if is_cut else extract_answer(said_aloud(self._chat.said(last_turn(trajectory)))).answer
        right = answer is not None and await self._graders.equal(prompt.answers[0], answer)
        reward = self._settings.correct_reward if right else self._settings.wrong_reward
        if self._settings.overlong_cache_tokens is None:
            return reward
        return reward + overlong_penalty(
            trajectory.generated_tokens,
            max_tokens=self._max_new_tokens,
            cache_tokens=self._settings.overlong_cache_tokens,
        )

    def render(self, token_ids: Sequence[int]) -> str:
        return self._codec.decode(token_ids)

    async def _refuse(self, call: ToolCall) -> ToolReturn:
        return self._answer(call, ToolStatus.MALFORMED, "There are no tools.", 0.0)

    def _answer(self, call: ToolCall, status: ToolStatus, text: str, duration_s: float) -> ToolReturn:
        body = tool_tokens(text, self._codec, self._settings.max_tool_tokens)
        tool = call.tool if call.tool == PYTHON_TOOL else "unknown"
        return ToolReturn(tool=tool, status=status, token_ids=self._chat.tool_turn(body), duration_s=duration_s)
