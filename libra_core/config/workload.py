"""Workloads: what is asked, which tools answer, how it is scored."""

from typing import Annotated, Any, Literal, TypeVar

from pydantic import Discriminator, Field, Tag, model_validator

from libra_core.config.base import Section
from libra_core.config.paths import InputPath, OutputPath
from libra_core.config.sandbox import SandboxConfig

_OF_FILES = ("heldout_files", "retriever", "corpus", "url", "reward", "format_reward")
"""Keys of `search_r1` that only questions of files use."""


class SearchDriftConfig(Section):
    """What the questions of one step are like."""

    step: int = Field(ge=0)
    """Optimizer step at which prompts of this kind would be trained; between two points everything changes linearly."""
    two_hop_share: float = Field(ge=0, le=1)
    search_s: float = Field(default=0.0, ge=0)
    """How long a search takes."""


class SearchR1Config(Section):
    """Search-R1: `<search>`, `<information>`, `<answer>` turns over a BM25 index of passages.

    Without `train_files` it asks about countries, with the passages built in.
    """

    kind: Literal["search_r1"] = "search_r1"
    two_hop_share: float = Field(default=0.5, ge=0, le=1)
    search_s: float = Field(default=0.0, ge=0)
    """How long a search of the built-in passages takes, as one over a network would; 0: as long as it takes here."""
    drift: tuple[SearchDriftConfig, ...] = ()
    """How the built-in questions change over the run, in place of `two_hop_share` and `search_s`."""
    top_k: int = Field(default=1, ge=1)
    max_passage_tokens: int = Field(default=96, ge=8)
    heldout_share: float = Field(default=0.2, ge=0, lt=1)
    """Share of the real facts never seen in the warm start."""
    heldout_prompts: int = Field(default=64, ge=0)
    """Held-out questions scored at the end of a run; 0 scores none, and is the default where none are held out."""
    train_files: tuple[InputPath, ...] = ()
    """Questions as Search-R1, NQ or HotpotQA publish them: parquet, JSONL or JSON, also gzipped."""
    heldout_files: tuple[InputPath, ...] = ()
    retriever: Literal["bm25", "http", "searxng"] = "bm25"
    """`bm25` indexes `corpus`; `http` asks a Search-R1 server's `/retrieve`; `searxng` asks a SearXNG instance."""
    corpus: InputPath | None = None
    """Passages for `bm25`: JSONL or JSON with `contents`, or with `title` and `text`."""
    url: str | None = None
    """Server of `http` or `searxng`, for example http://127.0.0.1:8000."""
    retriever_deadline_s: float = Field(default=10.0, gt=0)
    """Of one request to a server."""
    retriever_tries: int = Field(default=3, ge=1)
    retriever_requests_per_s: float | None = Field(default=None, gt=0)
    """Unset: as fast as asked."""
    retriever_cache: int = Field(default=10_000, ge=0)
    """Answers of a server that are kept."""
    reward: Literal["exact_match", "f1"] = "exact_match"
    format_reward: float = Field(default=0.0, ge=0, le=1)
    """For a wrong answer in the right tags."""

    @model_validator(mode="before")
    @classmethod
    def _scores_none_where_none_are_held_out(cls, values: Any) -> Any:
        if not isinstance(values, dict):
            return values
        files_alone = bool(values.get("train_files")) and not values.get("heldout_files")
        return {"heldout_prompts": 0, **values} if files_alone or values.get("heldout_share") == 0 else values

    @model_validator(mode="after")
    def _retriever_is_complete(self) -> "SearchR1Config":
        if self.train_files and self.retriever == "bm25" and self.corpus is None:
            raise ValueError("workload.train_files needs passages: set workload.corpus, or workload.retriever to http or searxng")
        if self.retriever != "bm25" and self.url is None:
            raise ValueError(f"workload.retriever = {self.retriever} needs workload.url, for example http://127.0.0.1:8000")
        return self

    @model_validator(mode="after")
    def _drift_ascends(self) -> "SearchR1Config":
        steps = [point.step for point in self.drift]
        if steps != sorted(set(steps)):
            raise ValueError(f"workload.drift must name ascending steps, each once; it names {steps}")
        if self.train_files and (self.drift or self.search_s):
            raise ValueError(
                "workload.drift and workload.search_s are for the built-in questions; leave them out with train_files"
            )
        return self

    @model_validator(mode="after")
    def _built_in_questions_have_their_own(self) -> "SearchR1Config":
        fields = type(self).model_fields
        idle = [name for name in _OF_FILES if not self.train_files and getattr(self, name) != fields[name].default]
        if idle:
            raise ValueError(
                f"workload.{idle[0]} = {getattr(self, idle[0])!r} has no effect without workload.train_files: "
                "the built-in questions bring their passages and reward; set train_files, or leave it out"
            )
        return self

    @model_validator(mode="after")
    def _heldout_is_not_empty(self) -> "SearchR1Config":
        return _with_heldout(self)


class R2EGymConfig(Section):
    """R2E-Gym: repair a repository with a shell, an editor and Python; hidden tests decide."""

    kind: Literal["r2e_gym"] = "r2e_gym"
    train_files: tuple[InputPath, ...] = ()
    """Instances as R2E-Gym or SWE-bench publish them, run in their images. Unset: functions of installed packages, mutated."""
    heldout_files: tuple[InputPath, ...] = ()
    image: str | None = None
    """Image of an instance that names none; `{instance_id}` is replaced, with `__` as `_1776_` as SWE-bench tags it."""
    repo_folder: str = "/testbed"
    """Where an image keeps the repository."""
    prepared: OutputPath = "runs/cache/r2e_gym"
    """Folder of the mutated tasks; made when it is missing. Relative to the working directory."""
    max_tool_tokens: int = Field(default=1024, ge=16)
    """A longer answer is cut in its middle."""
    test_wall_s: float = Field(default=30.0, gt=0)
    """Deadline of the hidden tests."""
    heldout_share: float = Field(default=0.1, ge=0, lt=1)
    """Of the mutated tasks, by function."""
    heldout_prompts: int = Field(default=0, ge=0)
    """Held-out tasks scored at the end of a run; 0 scores none."""
    sandbox: SandboxConfig = SandboxConfig()

    @model_validator(mode="after")
    def _heldout_is_not_empty(self) -> "R2EGymConfig":
        return _with_heldout(self)


class DapoMathConfig(Section):
    """DAPO-Math: problems with one right answer, compared by `math-verify`."""

    kind: Literal["dapo_math"] = "dapo_math"
    train_files: tuple[InputPath, ...] = ()
    """DAPO-Math-17K, GSM8K, MATH, AIME or DeepMath files. Unset: problems of `reasoning-gym`, generated by seed."""
    heldout_files: tuple[InputPath, ...] = ()
    generated_tasks: tuple[str, ...] = Field(
        default=("chain_sum", "products", "gcd", "lcm", "simple_equations", "fraction_simplification"), min_length=1
    )
    """Names of reasoning-gym tasks with a number, fraction or formula as answer."""
    python_tool: bool = False
    """Let the policy run Python in a sandbox."""
    max_tool_tokens: int = Field(default=512, ge=16)
    """A longer answer of the tool is cut in its middle."""
    correct_reward: float = 1.0
    wrong_reward: float = 0.0
    overlong_cache_tokens: int | None = Field(default=None, ge=1)
    """DAPO's soft penalty: from so many tokens before `rollout.max_new_tokens` on, the reward falls linearly by up to 1."""
    grade_deadline_s: float = Field(default=10.0, gt=0)
    """For one comparison by computer algebra; past it the trajectory counts as failed, never as wrong."""
    grade_workers: int = Field(default=2, ge=1)
    heldout_prompts: int = Field(default=0, ge=0)
    """Held-out problems scored at the end of a run; 0 scores none."""
    sandbox: SandboxConfig = SandboxConfig()

    @model_validator(mode="after")
    def _heldout_is_not_empty(self) -> "DapoMathConfig":
        return _with_heldout(self)


class SyntheticConfig(Section):
    """No task: turns, tool waits and rewards of known laws, drawn from what the policy samples. Measures scheduling.

    The laws hold for a policy with random weights, which `model.path` unset makes: a taught one prefers some tokens. Raise
    `rollout.max_turns`, `max_new_tokens` and `max_context_tokens` to a few times the means, or they cut the tail.
    """

    kind: Literal["synthetic"] = "synthetic"
    prompt_tokens: int = Field(default=32, ge=1)
    turn_tokens: float = Field(default=6.0, ge=1)
    """Mean generated tokens per turn (geometric); one token in so many of the vocabulary ends a turn."""
    turns: float = Field(default=6.0, ge=1)
    """Mean turns per trajectory (geometric); all but the last end in a tool call."""
    tool_tokens: int = Field(default=8, ge=0)
    """Tokens that a tool returns."""
    tool_wait_s: float = Field(default=0.2, ge=0)
    """Median wait for a tool (log-normal)."""
    tool_wait_sigma: float = Field(default=1.0, ge=0)
    """Standard deviation of the wait's natural logarithm."""
    tool_wait_prompt_share: float = Field(default=0.3, ge=0, le=1)
    """Share of that variance that belongs to the prompt: all tools of a slow prompt are slow."""
    heldout_prompts: int = Field(default=0, ge=0)
    """Prompts outside the training stream, scored at the end of a run; 0 scores none."""


_OfFiles = TypeVar("_OfFiles", SearchR1Config, R2EGymConfig, DapoMathConfig)


def _with_heldout(settings: _OfFiles) -> _OfFiles:
    """Refuses an evaluation of nothing, and held-out files that nothing evaluates."""
    count = settings.heldout_prompts
    if settings.heldout_files and not settings.train_files:
        raise ValueError("workload.heldout_files has no effect without workload.train_files; set train_files, or leave it out")
    if settings.heldout_files and not count:
        raise ValueError(
            "workload.heldout_files are named, but workload.heldout_prompts = 0 scores none of them; raise it, or leave them out"
        )
    if settings.train_files and count and not settings.heldout_files:
        raise ValueError(
            f"workload.heldout_prompts = {count} needs workload.heldout_files: nothing of train_files is held out; name files, "
            "or set heldout_prompts = 0"
        )
    if not settings.train_files and count and getattr(settings, "heldout_share", 1) == 0:
        raise ValueError(f"workload.heldout_prompts = {count}, but workload.heldout_share = 0 holds none out; change one of them")
    return settings


_DEFAULT_KIND = "search_r1"


def _kind_of(value: Any) -> str:
    kind = value.get("kind", _DEFAULT_KIND) if isinstance(value, dict) else getattr(value, "kind", _DEFAULT_KIND)
    return str(kind)


WorkloadConfig = Annotated[
    Annotated[SearchR1Config, Tag("search_r1")]
    | Annotated[R2EGymConfig, Tag("r2e_gym")]
    | Annotated[DapoMathConfig, Tag("dapo_math")]
    | Annotated[SyntheticConfig, Tag("synthetic")],
    Discriminator(_kind_of),
]
"""A section without `kind` is `search_r1`."""
