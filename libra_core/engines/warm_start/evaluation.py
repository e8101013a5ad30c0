"""How often a policy answers right at temperature 1."""

from collections.abc import Sequence
from typing import Final

from transformers import Qwen3ForCausalLM

from libra_core.engines.warm_start.sampler import ConversationSampler, SamplingLimits
from libra_core.types.trajectory import Prompt
from libra_core.workloads.search_r1.environment import SearchEnvironment

LIMITS: Final = SamplingLimits(max_new_tokens=64, max_context_tokens=256, max_turns=3)
"""Fixed, so that a cached success rate means the same for every run."""


class SuccessMeter:
    """Asks the same questions with the same random numbers every time, so that two policies compare fairly."""

    def __init__(self, policy: Qwen3ForCausalLM, environment: SearchEnvironment, seed: int) -> None:
        self._sampler = ConversationSampler(policy, environment, LIMITS)
        self._environment = environment
        self._seed = seed

    def success(self, prompts: Sequence[Prompt]) -> float:
        """Mean reward, 0..1."""
        trajectories = self._sampler.sample(prompts, self._seed)
        rewards = [self._environment.judge(prompt, t) for prompt, t in zip(prompts, trajectories, strict=True)]
        return sum(rewards) / len(rewards)
