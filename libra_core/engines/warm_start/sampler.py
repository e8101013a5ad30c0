"""Batched sampling of whole conversations with a KV cache, for evaluating a tiny policy without an engine.

Sequences never need padding: prompts share one prefill up to the shortest, and everything that is not sampled (the rest of
longer prompts, tool text) is fed one token per step from a queue.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

import torch
from transformers import DynamicCache, Qwen3ForCausalLM

from libra_core.ports.environment import TurnStops
from libra_core.types.ids import GroupId, TrajectoryId
from libra_core.types.trajectory import FinishReason, Prompt, ToolCall, ToolReturn, Trajectory


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingLimits:
    """When a conversation ends at the latest."""

    max_new_tokens: int
    max_context_tokens: int
    max_turns: int
    temperature: float = 1.0


class InstantTools(Protocol):
    """What a sampler without an event loop needs of an environment."""

    def stops(self) -> TurnStops: ...

    def parse_call(self, turn_token_ids: Sequence[int]) -> ToolCall | None: ...

    def call_tool(self, prompt: Prompt, call: ToolCall) -> ToolReturn:
        """Called once at a time for each prompt."""
        ...


@dataclass(slots=True)
class _Conversation:
    prompt: Prompt
    token_ids: list[int] = field(default_factory=list)
    loss_mask: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    queued: deque[int] = field(default_factory=deque)
    turn_start: int = 0
    tool_returns: list[ToolReturn] = field(default_factory=list)
    finish_reason: FinishReason | None = None

    def append(self, token_id: int, logprob: float, *, sampled: bool) -> None:
        self.token_ids.append(token_id)
        self.loss_mask.append(int(sampled))
        self.logprobs.append(logprob if sampled else 0.0)

    def trajectory(self, number: int) -> Trajectory:
        return Trajectory(
            trajectory_id=TrajectoryId(f"sample-{number}"),
            group_id=GroupId(self.prompt.prompt_id),
            prompt_id=self.prompt.prompt_id,
            sample_index=number,
            token_ids=tuple(self.token_ids),
            loss_mask=tuple(self.loss_mask),
            logprobs=tuple(self.logprobs),
            prompt_tokens=len(self.prompt.token_ids),
            versions=(),
            turns=len(self.tool_returns) + 1,
            tool_returns=tuple(self.tool_returns),
            finish_reason=self.finish_reason or FinishReason.LENGTH,
            engine_history=(),
            started_s=0.0,
            finished_s=0.0,
        )


class ConversationSampler:
    """Samples every prompt once, with the environment's own tools."""

    def __init__(self, policy: Qwen3ForCausalLM, environment: InstantTools, limits: SamplingLimits) -> None:
        self._policy = policy
        self._environment = environment
        self._limits = limits
        self._stops = frozenset(environment.stops().token_ids)

    @torch.no_grad()
    def sample(self, prompts: Sequence[Prompt], seed: int) -> tuple[Trajectory, ...]:
        """Trajectories in the order of the prompts, unscored."""
        self._policy.eval()
        generator = torch.Generator().manual_seed(seed)
        shared = min(len(prompt.token_ids) for prompt in prompts)
        conversations = [_begun(prompt, shared) for prompt in prompts]
        active = list(conversations)
        cache = DynamicCache(config=self._policy.config)
        inputs = torch.tensor([conversation.token_ids for conversation in active])
        while active:
            output = self._policy(input_ids=inputs, past_key_values=cache, use_cache=True, logits_to_keep=1)
            self._extend(active, output.logits[:, -1], generator)
            going = [index for index, conversation in enumerate(active) if conversation.finish_reason is None]
            if len(going) < len(active):
                active = [active[index] for index in going]
                cache.batch_select_indices(torch.tensor(going, dtype=torch.long))
            inputs = torch.tensor([[conversation.token_ids[-1]] for conversation in active])
        return tuple(conversation.trajectory(number) for number, conversation in enumerate(conversations))

    def _extend(self, active: Sequence[_Conversation], logits: torch.Tensor, generator: torch.Generator) -> None:
        logprobs = (logits / self._limits.temperature).log_softmax(-1)  # [B, V]
        sampled = torch.multinomial(logprobs.exp(), 1, generator=generator)  # [B, 1]
        chosen = logprobs.gather(1, sampled).squeeze(1).tolist()
        for conversation, token_id, logprob in zip(active, sampled.squeeze(1).tolist(), chosen, strict=True):
            if conversation.queued:
                conversation.append(conversation.queued.popleft(), 0.0, sampled=False)
                if not conversation.queued:
                    conversation.turn_start = len(conversation.token_ids)
            else:
                conversation.append(token_id, logprob, sampled=True)
                self._after_token(conversation, token_id)

    def _after_token(self, conversation: _Conversation, token_id: int) -> None:
        limits = self._limits
        if token_id in self._stops:
            call = self._environment.parse_call(conversation.token_ids[conversation.turn_start :])
            if call is None:
                conversation.finish_reason = FinishReason.STOP
                return
            if len(conversation.tool_returns) + 1 < limits.max_turns:
                returned = self._environment.call_tool(conversation.prompt, call)
                conversation.tool_returns.append(returned)
                conversation.queued.extend(returned.token_ids)
        ended_by_turns = token_id in self._stops and not conversation.queued
        context_tokens = len(conversation.token_ids) + len(conversation.queued)
        exhausted = sum(conversation.loss_mask) >= limits.max_new_tokens or context_tokens >= limits.max_context_tokens
        if ended_by_turns or exhausted:
            conversation.finish_reason = FinishReason.LENGTH


def _begun(prompt: Prompt, shared: int) -> _Conversation:
    conversation = _Conversation(prompt=prompt, turn_start=len(prompt.token_ids))
    for token_id in prompt.token_ids[:shared]:
        conversation.append(token_id, 0.0, sampled=False)
    conversation.queued.extend(prompt.token_ids[shared:])
    return conversation
