"""How often a policy solves tasks with real tools."""

import asyncio
from collections.abc import Sequence
from dataclasses import replace

from transformers import Qwen3ForCausalLM

from libra_core.engines.warm_start.sampler import ConversationSampler, SamplingLimits
from libra_core.ports.environment import Environment, Episode, TurnStops
from libra_core.types.trajectory import Prompt, ToolCall, ToolReturn, Trajectory


def tool_success(
    policy: Qwen3ForCausalLM, environment: Environment, prompts: Sequence[Prompt], limits: SamplingLimits, seed: int
) -> float:
    """Share of prompts with reward of at least 1, each sampled once; an error of the infrastructure ends the measurement."""
    with asyncio.Runner() as runner:
        tools = _Tools(environment, runner)
        try:
            trajectories = ConversationSampler(policy, tools, limits).sample(prompts, seed)
            rewards = [tools.score(prompt, trajectory) for prompt, trajectory in zip(prompts, trajectories, strict=True)]
        finally:
            tools.close()
    return sum(reward >= 1.0 for reward in rewards) / len(rewards)


class _Tools:
    """An environment for callers without an event loop; an episode for each prompt that uses a tool or is scored."""

    def __init__(self, environment: Environment, runner: asyncio.Runner) -> None:
        self._environment = environment
        self._runner = runner
        self._episodes: dict[str, Episode] = {}

    def stops(self) -> TurnStops:
        return self._environment.stops()

    def parse_call(self, turn_token_ids: Sequence[int]) -> ToolCall | None:
        return self._environment.parse_call(turn_token_ids)

    def call_tool(self, prompt: Prompt, call: ToolCall) -> ToolReturn:
        return self._runner.run(self._episode(prompt).step(call))

    def score(self, prompt: Prompt, trajectory: Trajectory) -> float:
        submission = self._runner.run(self._episode(prompt).submission())
        return self._runner.run(self._environment.score(prompt, replace(trajectory, submission=submission)))

    def close(self) -> None:
        for episode in self._episodes.values():
            self._runner.run(episode.close())

    def _episode(self, prompt: Prompt) -> Episode:
        if prompt.prompt_id not in self._episodes:
            self._episodes[prompt.prompt_id] = self._runner.run(self._environment.reset(prompt))
        return self._episodes[prompt.prompt_id]
