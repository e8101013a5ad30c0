"""Tools and rewards of repairing a mutated package."""

from collections.abc import Sequence
from typing import Final

from libra_core.config.workload import R2EGymConfig
from libra_core.ports.environment import Episode, TurnStops
from libra_core.types.trajectory import Prompt, ToolCall, ToolReturn, ToolStatus, Trajectory
from libra_core.workloads.calls import malformed, parse_tool_call
from libra_core.workloads.chat import Chat
from libra_core.workloads.r2e_gym.repositories import Repositories
from libra_core.workloads.r2e_gym.tools import SUBMIT, USAGE, command_of, own_terms, tool_name
from libra_core.workloads.sandbox.types import Sandbox
from libra_core.workloads.spoken import last_turn
from libra_core.workloads.text_codec import TextCodec
from libra_core.workloads.tool_text import tool_tokens

_NO_CALL: Final = "this turn holds no tool call"


class R2EGymEnvironment:
    """Implements `ports.environment.Environment`. Only a trajectory that submits can be right."""

    def __init__(self, codec: TextCodec, settings: R2EGymConfig, repositories: Repositories) -> None:
        self._codec = codec
        self._chat = Chat(codec)
        self._settings = settings
        self._repositories = repositories

    def stops(self) -> TurnStops:
        return TurnStops(token_ids=self._chat.end_ids)

    def parse_call(self, turn_token_ids: Sequence[int]) -> ToolCall | None:
        """A turn without a call is answered, so that thinking aloud does not end a trajectory."""
        call = own_terms(parse_tool_call(self._chat.said(turn_token_ids)) or malformed(_NO_CALL))
        return None if _submits(call) else call

    async def reset(self, prompt: Prompt) -> Episode:
        return RepairEpisode(await self._repositories.open(prompt.instance), prompt.instance, self)

    def answer_failure(self, call: ToolCall, status: ToolStatus) -> ToolReturn:
        return self.answer(call, status, "The tool gave no answer in time.", 0.0)

    async def score(self, prompt: Prompt, trajectory: Trajectory) -> float:
        """1.0 when the hidden tests pass in a fresh sandbox with the submitted changes, else 0.0."""
        call = parse_tool_call(self._chat.said(last_turn(trajectory)))
        if call is None or not _submits(own_terms(call)) or not trajectory.submission:
            return 0.0
        return float(await self._repositories.passes(prompt.instance, trajectory.submission))

    def render(self, token_ids: Sequence[int]) -> str:
        return self._codec.decode(token_ids)

    def answer(self, call: ToolCall, status: ToolStatus, text: str, duration_s: float) -> ToolReturn:
        body = tool_tokens(text, self._codec, self._settings.max_tool_tokens)
        return ToolReturn(tool=tool_name(call), status=status, token_ids=self._chat.tool_turn(body), duration_s=duration_s)

    async def collect(self, sandbox: Sandbox, instance: str) -> str:
        return await self._repositories.collect(sandbox, instance)


class RepairEpisode:
    """Implements `ports.environment.Episode`."""

    def __init__(self, sandbox: Sandbox, instance: str, environment: R2EGymEnvironment) -> None:
        self._sandbox = sandbox
        self._instance = instance
        self._environment = environment

    async def step(self, call: ToolCall) -> ToolReturn:
        if call.malformed:
            return self._environment.answer(call, ToolStatus.MALFORMED, f"{call.argument}.\n{USAGE}", 0.0)
        command = command_of(call)
        if isinstance(command, str):
            return self._environment.answer(call, ToolStatus.MALFORMED, f"{command}\n{USAGE}", 0.0)
        result = await self._sandbox.run(command)
        return self._environment.answer(call, result.status, result.text, result.duration_s)

    async def submission(self) -> str:
        return await self._environment.collect(self._sandbox, self._instance)

    async def close(self) -> None:
        await self._sandbox.close()


def _submits(call: ToolCall) -> bool:
    return not call.malformed and call.tool == SUBMIT
