"""Rollout: the fleet, how trajectories are sampled, and how far they may lag behind the trainer."""

from typing import Any, Literal

from pydantic import Field, model_validator

from libra_core.config.base import Section


class EngineGroupConfig(Section):
    """Engines of one tensor-parallel degree."""

    tp: int = Field(default=1, ge=1)
    count: int = Field(default=1, ge=1)


KV_CONNECTORS = (
    "shared_folder",
    "NixlConnector",
    "NixlPullConnector",
    "LMCacheConnectorV1",
    "LMCacheMPConnector",
    "MooncakeStoreConnector",
)
"""Those that are known to keep the KV of policy versions apart."""


class KvTransferConfig(Section):
    """How a trajectory that moves takes its KV along. `kv_transfer: shared_folder` is short for `kv_transfer: {connector: …}`."""

    connector: str | None = None
    """`shared_folder`: through /dev/shm, between engines of one host. Otherwise a KV connector of vLLM: `NixlConnector`,
    `NixlPullConnector`, `LMCacheConnectorV1`, `LMCacheMPConnector` or `MooncakeStoreConnector`. Unset (or `off`): the target
    computes the context again."""
    options: dict[str, Any] = Field(default_factory=dict[str, Any])
    """Passed on as `kv_connector_extra_config` of vLLM's connector."""
    module: str | None = None
    """Python module of any other connector. It must name KV by vLLM's block hashes, which are salted with the policy version, or
    by `cache_salt`: engines would else use KV of an older policy."""
    max_mib: int = Field(default=1024, ge=16)
    """Size of the shared folder; what was saved longest ago is evicted."""
    offer_deadline_s: float = Field(default=10.0, gt=0)
    """The target computes the context again when the engine before has not handed it over within this time."""

    @model_validator(mode="before")
    @classmethod
    def _name_alone(cls, value: Any) -> Any:
        """YAML reads a bare `off` as false."""
        if value in (False, "off"):
            return {}
        return {"connector": value} if isinstance(value, str) else value

    @model_validator(mode="after")
    def _options_have_a_reader(self) -> "KvTransferConfig":
        if self.connector in (None, "shared_folder") and (self.options or self.module):
            raise ValueError(
                f"rollout.kv_transfer.options and .module are for connectors of vLLM or of your own, and the connector is "
                f"{self.connector or 'unset'}; name one, or leave them out"
            )
        if self.connector is not None and self.connector not in KV_CONNECTORS and self.module is None:
            raise ValueError(
                f"rollout.kv_transfer.connector = {self.connector} is not known to keep the KV of policy versions apart; choose "
                f"one of {', '.join(KV_CONNECTORS)}, or vouch for it by naming its module"
            )
        return self


class RolloutConfig(Section):
    """Trajectory generation."""

    engines: tuple[EngineGroupConfig, ...] = (EngineGroupConfig(),)
    """The fleet, for example `[{tp: 1, count: 2}]`."""
    mode: Literal["asynchronous", "colocated"] = "asynchronous"
    """`asynchronous`: engines and trainer work side by side. `colocated`: they take turns on the same devices; the engines are
    held while the trainer works and unfinished trajectories go on afterwards under the new weights."""
    staleness: int = Field(default=1, ge=0)
    """η: a group started at version v trains at version v+η at the latest. 0 is synchronous."""
    age_slack: int = Field(default=1, ge=0)
    """X: a group may train up to X steps later still, so that a few slow groups do not stop everybody."""
    kv_fill: float | None = Field(default=0.7, gt=0, le=1)
    """Share of an engine's KV cache that may be promised to trajectories, in expected context; the others wait unbound. Unset
    (`null`) promises it to all of them at once."""
    queue_order: Literal["fifo", "longest_first"] = "fifo"
    """Which waiting trajectory binds next: of the oldest group, or the one expected to grow longest."""
    groups_per_step: int = Field(default=16, ge=1)
    """Prompts per optimizer step."""
    group_size: int = Field(default=8, ge=2)
    """Samples per prompt."""
    temperature: float = Field(default=1.0, ge=0.01, le=2)
    """Between vLLM's own bounds: below 0.01 it samples at 0.01, which the trainer would not know of, and above 2 it refuses."""
    max_turns: int = Field(default=3, ge=1)
    max_new_tokens: int = Field(default=64, ge=1)
    """Generated tokens per trajectory, over all turns."""
    max_context_tokens: int = Field(default=384, ge=16)
    """Prompt, generated and tool tokens together."""
    max_tool_tokens: int | None = Field(default=None, ge=16)
    """A longer answer of a tool is cut in its middle, with a mark. Unset: what is left of the context."""
    on_length_limit: Literal["mask", "penalise", "grade"] = "penalise"
    """What becomes of a trajectory cut at `max_new_tokens`, `max_context_tokens` or `max_turns`. `penalise`: it has not answered,
    so its reward is at most 0. `mask`: no reward and no gradient, and its group's baseline is without it (DAPO's overlong
    filter); held-out prompts count 0. `grade`: as if it had ended there."""
    max_num_seqs: int = Field(default=128, ge=1)
    """Largest decode batch of one engine."""
    kv_cache_mib: int = Field(default=256, ge=16)
    """KV cache per GPU (CPU backend: per engine process)."""
    gpu_memory_utilization: float = Field(default=0.85, gt=0, le=1)
    """GPU backend only; replaces `kv_cache_mib`."""
    block_size: int = Field(default=32, ge=16)
    """KV block in tokens, the granularity of the prefix cache; a multiple of 32 on CPU."""
    enforce_eager: bool = True
    kv_transfer: KvTransferConfig = KvTransferConfig()
    turn_deadline_s: float = Field(default=120.0, gt=0)
    """An engine that returns no turn within this time counts as lost."""
    tool_deadline_s: float = Field(default=60.0, gt=0)
    """A tool that gives no answer within this time of its start is answered for with status `timeout`."""
    queue_deadline_s: float = Field(default=300.0, gt=0)
    """How long a tool call or a scoring may wait for places on the host (`tool_threads`, and the workload's
    `sandbox.open_at_once`, `sandbox.commands_at_once`, `grade_workers`, `retriever_requests_per_s`); past it the trajectory
    counts as failed. The deadlines of tools and scores stand still meanwhile."""
    tool_threads: int = Field(default=64, ge=1)
    """Threads for tools that block, such as a local index; further calls wait."""
    score_deadline_s: float = Field(default=60.0, gt=0)
    """A trajectory that is not scored within this time counts as failed, never as reward 0."""
    batch_deadline_s: float = Field(default=600.0, gt=0)
    """How long a step waits for its batch before it fails with a report of who is late."""
    engine_start_deadline_s: float = Field(default=300.0, gt=0)
    on_failed_group: Literal["retry", "partial", "drop"] = "retry"
    """What becomes of a group one of whose samples failed for want of infrastructure."""
    max_group_retries: int = Field(default=2, ge=0)
    max_lost_groups: int = Field(default=32, ge=1)
    """When so many groups in a row come to nothing, for want of tools, rewards or engines, the run ends and says what the newest
    died of. Prompts of lost groups are issued again, later in the run or when it is resumed."""

    @model_validator(mode="after")
    def _lengths_fit(self) -> "RolloutConfig":
        if self.max_new_tokens >= self.max_context_tokens:
            raise ValueError(
                f"rollout.max_new_tokens ({self.max_new_tokens}) must be below rollout.max_context_tokens "
                f"({self.max_context_tokens}): the prompt needs room too; raise the context or lower the new tokens"
            )
        return self

    @property
    def num_engines(self) -> int:
        return sum(group.count for group in self.engines)
