"""Trajectories as they were sampled: token-in, token-out, never re-encoded text."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

from libra_core.types.ids import EngineId, GroupId, PolicyVersion, PromptId, TrajectoryId


class ToolStatus(StrEnum):
    """Outcome of a tool call as the tool runner states it; never guessed from the text."""

    OK = "ok"
    ERROR = "error"
    TIMEOUT = "timeout"
    MALFORMED = "malformed"


class FinishReason(StrEnum):
    """Why an engine stopped generating."""

    STOP = "stop"
    LENGTH = "length"
    ABORT = "abort"


class FailureKind(StrEnum):
    """Infrastructure failures. A policy's mistake is data, never one of these."""

    ENGINE = "engine"
    TOOL_RUNNER = "tool_runner"
    SCORER = "scorer"
    PROMPT = "prompt"
    """It leaves no room to answer, or is none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Prompt:
    """One question with everything its environment needs to answer tools and to score."""

    prompt_id: PromptId
    token_ids: tuple[int, ...]
    text: str
    answers: tuple[str, ...]
    """Accepted answers; hidden from the policy."""
    kind: str = ""
    """Stratum for reports, such as `one_hop` or `heldout/two_hop`."""
    instance: str = ""
    """Key of what the environment needs beyond the answers, such as a repository."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolCall:
    """What the policy asked for, parsed from its own tokens."""

    tool: str
    argument: str
    malformed: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolOutcome:
    """A tool return without its tokens: all that routing may look at."""

    tool: str
    status: ToolStatus
    payload_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolReturn:
    """What a tool answered. `token_ids` are appended to the context and masked from the loss."""

    tool: str
    status: ToolStatus
    token_ids: tuple[int, ...]
    duration_s: float
    """Of the call itself."""
    waited_s: float = 0.0
    """Before that, for a place on the host."""

    @property
    def payload_tokens(self) -> int:
        return len(self.token_ids)

    @property
    def outcome(self) -> ToolOutcome:
        return ToolOutcome(tool=self.tool, status=self.status, payload_tokens=self.payload_tokens)


@dataclass(frozen=True, slots=True, kw_only=True)
class VersionSegment:
    """Tokens `[start, end)` of a trajectory were sampled by `version`; tool and prompt tokens belong to no segment."""

    version: PolicyVersion
    start: int
    end: int


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationRequest:
    """One turn asked of an engine.

    The second turn of the example at `Trajectory`: `token_ids` are all seven tokens so far, never the turn alone; the engine
    finds what it computed before in its prefix cache.
    """

    request_id: str
    token_ids: tuple[int, ...]
    max_new_tokens: int
    temperature: float
    stop_token_ids: tuple[int, ...]
    priority: int = 0
    kv_ticket: Mapping[str, Any] | None = None
    """From the engine that has computed this context: KV is loaded where the connector finds it. Only the connector reads it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GeneratedTurn:
    """One turn as an engine sampled it; an aborted turn keeps every token sampled so far.

    `token_ids[n]`, `logprobs[n]`. Three tokens of which new weights sampled the last: versions `4: [0, 2)`, `5: [2, 3)`.
    """

    token_ids: tuple[int, ...]
    """The stop token is included."""
    logprobs: tuple[float, ...]
    """Natural log-probabilities after temperature (`processed_logprobs`), one per token."""
    finish_reason: FinishReason
    versions: tuple[VersionSegment, ...]
    """Relative to this turn's first generated token."""
    cached_tokens: int
    """Prompt tokens that were not computed: served from the prefix cache, or loaded from another engine."""
    first_token_s: float
    duration_s: float
    loaded_tokens: int | None = None
    """Of the cached ones, loaded from another engine; None when the connector does not tell."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """Why infrastructure could not finish a trajectory."""

    kind: FailureKind
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Trajectory:
    """One sample of one prompt. All sequences have length L = prompt + generated + tool tokens.

    A search with L = 9: two prompt tokens, three sampled, two from the tool while new weights came, two sampled::

        token_ids  11 12 | 21  22  23 | 31 32 | 41  42      prompt_tokens 2, generated_tokens 5, turns 2
        loss_mask   0  0 |  1   1   1 |  0  0 |  1   1
        logprobs    0  0 | -.1 -.7 -.2|  0  0 | -.3 -.1
        versions    4: [2, 5)                  5: [7, 9)    oldest_version 4
    """

    trajectory_id: TrajectoryId
    group_id: GroupId
    prompt_id: PromptId
    sample_index: int
    token_ids: tuple[int, ...]
    loss_mask: tuple[int, ...]
    """1 where the policy sampled the token, else 0."""
    logprobs: tuple[float, ...]
    """Of the sampling policy after temperature; 0.0 where `loss_mask` is 0."""
    prompt_tokens: int
    versions: tuple[VersionSegment, ...]
    turns: int
    tool_returns: tuple[ToolReturn, ...]
    finish_reason: FinishReason
    engine_history: tuple[EngineId, ...]
    context_tokens: int = 0
    """Prompt tokens of all turns together: what prefilling costs without a prefix cache."""
    cached_tokens: int = 0
    """Of these, served from a prefix cache."""
    reprefilled_tokens: int = 0
    """Of these, computed again although an earlier turn had computed them: a lost or moved prefix."""
    started_s: float
    """Unix time of the first request."""
    finished_s: float
    reward: float | None = None
    advantage: float | None = None
    submission: str = ""
    """What the environment keeps for scoring beside the tokens, such as changed files."""
    failure: Failure | None = None

    @property
    def generated_tokens(self) -> int:
        return sum(self.loss_mask)

    @property
    def oldest_version(self) -> PolicyVersion:
        """Version of the oldest sampled token; raises `ValueError` for a trajectory without one."""
        return min(segment.version for segment in self.versions)

    def scored(self, reward: float) -> "Trajectory":
        return replace(self, reward=reward)

    def with_advantage(self, advantage: float) -> "Trajectory":
        return replace(self, advantage=advantage)

    def failed(self, failure: Failure) -> "Trajectory":
        return replace(self, failure=failure)
