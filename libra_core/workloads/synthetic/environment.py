"""Turns, tool waits and rewards as functions of the sampled tokens."""

import asyncio
import math
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

from libra_core.config.workload import SyntheticConfig
from libra_core.ports.environment import Episode, TurnStops
from libra_core.types.trajectory import Prompt, ToolCall, ToolReturn, ToolStatus, Trajectory
from libra_core.workloads.episodes import WaitingEpisode
from libra_core.workloads.synthetic.draws import digest, normal, uniform
from libra_core.workloads.synthetic.vocabulary import SyntheticVocabulary

WAIT_TOOL: Final = "wait"


class SyntheticEnvironment:
    """Implements `ports.environment.Environment`; holds no state of a trajectory, so threads may share it."""

    def __init__(
        self,
        settings: SyntheticConfig,
        vocabulary: SyntheticVocabulary,
        *,
        seed: int,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._settings = settings
        self._vocabulary = vocabulary
        self._seed = seed
        self._sleep = sleep
        self._stops = tuple(sorted(vocabulary.stops))

    def stops(self) -> TurnStops:
        return TurnStops(token_ids=self._stops)

    async def reset(self, prompt: Prompt) -> Episode:
        return WaitingEpisode(lambda call: self._wait(prompt, call))

    def parse_call(self, turn_token_ids: Sequence[int]) -> ToolCall | None:
        """The turn's own tokens decide whether it is the last: one turn in `turns` is."""
        name = digest(turn_token_ids)
        if uniform(f"{self._seed}/last/{name}") * self._settings.turns < 1.0:
            return None
        return ToolCall(tool=WAIT_TOOL, argument=name)

    async def _wait(self, prompt: Prompt, call: ToolCall) -> ToolReturn:
        started_s = time.perf_counter()
        await self._sleep(self.wait_s(prompt, call))
        return ToolReturn(
            tool=call.tool,
            status=ToolStatus.OK,
            token_ids=self._returned(call),
            duration_s=time.perf_counter() - started_s,
        )

    def answer_failure(self, call: ToolCall, status: ToolStatus) -> ToolReturn:
        return ToolReturn(tool=call.tool, status=status, token_ids=self._returned(call), duration_s=0.0)

    async def score(self, prompt: Prompt, trajectory: Trajectory) -> float:
        return self.judge(trajectory)

    def judge(self, trajectory: Trajectory) -> float:
        """Share of rewarded tokens among those that the policy sampled; about 0.5 before anything is learned."""
        sampled = [token for token, own in zip(trajectory.token_ids, trajectory.loss_mask, strict=True) if own]
        return sum(token in self._vocabulary.rewarded for token in sampled) / len(sampled) if sampled else 0.0

    def render(self, token_ids: Sequence[int]) -> str:
        return " ".join(map(str, token_ids))

    def wait_s(self, prompt: Prompt, call: ToolCall) -> float:
        """Log-normal; one factor is the prompt's and one the call's."""
        settings = self._settings
        own = normal(f"{self._seed}/wait/{prompt.prompt_id}/{call.argument}")
        shared = normal(f"{self._seed}/wait/{prompt.prompt_id}")
        share = settings.tool_wait_prompt_share
        deviation = settings.tool_wait_sigma * (math.sqrt(share) * shared + math.sqrt(1.0 - share) * own)
        return settings.tool_wait_s * math.exp(deviation)

    def _returned(self, call: ToolCall) -> tuple[int, ...]:
        size = self._vocabulary.size
        return tuple(int(uniform(f"{call.argument}/{place}") * size) for place in range(self._settings.tool_tokens))
