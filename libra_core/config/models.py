"""The whole configuration of a run."""

from pydantic import model_validator

from libra_core.config.base import Section, Seed
from libra_core.config.elastic import ElasticConfig, ReplanningConfig
from libra_core.config.model import ModelConfig
from libra_core.config.paths import PlanPath
from libra_core.config.planner import PlannerConfig
from libra_core.config.rollout import RolloutConfig
from libra_core.config.routing import BUCKET_POLICIES, RoutingConfig
from libra_core.config.runtime import BackendConfig, OrchestrationConfig, RunConfig, TrackingConfig
from libra_core.config.simulation import SimulationConfig
from libra_core.config.training import PublicationConfig, TrainingConfig
from libra_core.config.workload import SearchR1Config, WorkloadConfig


class LibraConfig(Section):
    """One training run."""

    seed: Seed = 0
    plan: PlanPath | None = None
    """`auto`: mode, split, layouts and kind of step are planned when the run starts; a path: they are those of a plan that
    `libra plan --write` wrote. Unset: as `rollout`, `training` and `elastic` say."""
    run: RunConfig = RunConfig()
    backend: BackendConfig = BackendConfig()
    model: ModelConfig = ModelConfig()
    workload: WorkloadConfig = SearchR1Config()
    rollout: RolloutConfig = RolloutConfig()
    routing: RoutingConfig = RoutingConfig()
    training: TrainingConfig = TrainingConfig()
    publication: PublicationConfig = PublicationConfig()
    elastic: ElasticConfig = ElasticConfig()
    replanning: ReplanningConfig = ReplanningConfig()
    orchestration: OrchestrationConfig = OrchestrationConfig()
    tracking: TrackingConfig = TrackingConfig()
    planner: PlannerConfig = PlannerConfig()
    simulation: SimulationConfig = SimulationConfig()

    @model_validator(mode="after")
    def _every_rank_has_a_trajectory(self) -> "LibraConfig":
        sequences = self.rollout.groups_per_step * self.rollout.group_size
        if sequences < self.training.layout.dp:
            raise ValueError(
                f"a step has {sequences} trajectories (rollout.groups_per_step x rollout.group_size), which leaves some of "
                f"training.layout.dp = {self.training.layout.dp} replicas without work; change one of the three"
            )
        return self

    @property
    def streamed(self) -> bool:
        """Whether steps are streamed."""
        asked = self.training.streamed
        return self.rollout.mode == "asynchronous" if asked is None else asked

    @property
    def weights_by_file(self) -> bool:
        """Whether new weights travel as a file in this host's shared memory."""
        transport = self.publication.transport
        return self.backend.ray_address == "local" if transport == "auto" else transport == "file"

    @property
    def publishing_s(self) -> float:
        """How long a publication may take: a transfer and its repeat, and the canary."""
        return 3 * self.publication.deadline_s

    @property
    def departure_s(self) -> float:
        """How long an engine that leaves may take to hand over what it has, after the publication in work."""
        return self.publishing_s + self.elastic.drain_s

    @property
    def admission_s(self) -> float:
        """How long an engine that has started may wait for the publication in work, its own weights and the canary; a broadcast
        is the next publication."""
        return self.publishing_s + 2 * self.publication.deadline_s + (0.0 if self.weights_by_file else self.elastic.join_s)

    @property
    def replacement_s(self) -> float:
        """How long the replacement of a lost engine may take: a start under way in its place, a reservation and its own start."""
        return 3 * self.rollout.engine_start_deadline_s

    @property
    def canary_tolerance(self) -> float:
        """Largest absolute log-prob difference between an engine and the trainer with the same weights."""
        asked = self.publication.canary_tolerance
        if asked is not None:
            return asked
        if self.model.dtype == "bfloat16":
            return 0.3
        return 2e-2 if self.backend.kind == "gpu" else 1e-3

    @property
    def publications_overlap(self) -> bool:
        """Whether the trainer works on while the engines load."""
        return self.publication.overlap and self.rollout.mode == "asynchronous"

    @model_validator(mode="after")
    def _a_limit_per_bucket(self) -> "LibraConfig":
        buckets = len({group.tp for group in self.rollout.engines})
        for name in ("limits_tokens", "limit_quantiles"):
            given = getattr(self.routing, name)
            if given is not None and len(given) != buckets - 1:
                raise ValueError(
                    f"routing.{name} has {len(given)} values, but rollout.engines has {buckets} different tp and the last of "
                    f"their buckets has no limit; give {buckets - 1}"
                )
        return self

    @model_validator(mode="after")
    def _routing_has_a_choice(self) -> "LibraConfig":
        policy, degrees = self.routing.policy, {group.tp for group in self.rollout.engines}
        if policy in BUCKET_POLICIES and len(degrees) == 1 and not self.replanning.repartition:
            raise ValueError(
                f"routing.policy = {policy} chooses among engines of several tp, and rollout.engines are all of tp "
                f"{min(degrees)}, where it does nothing; add engines of another tp, or leave it out"
            )
        return self

    @property
    def hybrid_engines(self) -> int:
        """Engines that the GPUs of one hybrid replica hold; 0 without hybrid replicas."""
        if not self.elastic.hybrid_replicas:
            return 0
        return self.training.layout.tp * self.training.layout.pp // self.rollout.engines[0].tp

    @property
    def hybrid_engines_sleep(self) -> bool:
        """While their GPUs train. Connectors of others may have registered memory that sleep gives away."""
        return self.elastic.idle_engine == "sleep" and self.rollout.kv_transfer.connector in (None, "shared_folder")

    @model_validator(mode="after")
    def _hybrids_can_change_sides(self) -> "LibraConfig":
        hybrids, rollout = self.elastic.hybrid_replicas, self.rollout
        if not hybrids:
            if self.replanning.every_steps and not self.replanning.repartition:
                raise ValueError(
                    "replanning.every_steps has nothing to move without hybrid replicas or re-partition: "
                    "set elastic.hybrid_replicas or replanning.repartition, or every_steps 0"
                )
            return self
        each, degrees = self.training.layout.tp * self.training.layout.pp, {group.tp for group in rollout.engines}
        if len(degrees) != 1 or each % min(degrees) or hybrids * each >= rollout.engines[0].tp * rollout.num_engines:
            raise ValueError(
                f"elastic.hybrid_replicas = {hybrids} of {each} GPUs (training.layout tp x pp) must be whole engines of "
                f"rollout.engines, of one tp, and leave one that always serves; there are {rollout.num_engines} engines of tp "
                f"{sorted(degrees)}"
            )
        self._engines_can_come_and_go(f"elastic.hybrid_replicas = {hybrids}")
        return self

    @model_validator(mode="after")
    def _engines_can_be_divided_anew(self) -> "LibraConfig":
        if not self.replanning.repartition:
            return self
        groups = self.rollout.engines
        gpus, degrees = sum(group.tp * group.count for group in groups), sorted({group.tp for group in groups})
        for name, wrong, why in (
            (
                f"elastic.hybrid_replicas = {self.elastic.hybrid_replicas}",
                self.elastic.hybrid_replicas > 0,
                "engines of hybrid replicas keep their tp, and the others would then differ from them; choose one of the two",
            ),
            (f"engines of tp {degrees}", len(degrees) > 1, "a mixed fleet has no forecast here; give engines of one tp"),
            (f"{gpus} GPU for rollout.engines", gpus < 2, "it can only be one engine of tp 1"),
        ):
            if wrong:
                raise ValueError(f"replanning.repartition does not go with {name}: {why}")
        self._engines_can_come_and_go("replanning.repartition")
        return self

    def _engines_can_come_and_go(self, asked: str) -> None:
        for name, wrong, why in (
            ("rollout.mode = colocated", self.rollout.mode == "colocated", "both sides share all GPUs already"),
            ("backend.kind = simulated", self.backend.kind == "simulated", "no process runs that could change sides"),
        ):
            if wrong:
                raise ValueError(f"{asked} does not go with {name}: {why}")

    @model_validator(mode="after")
    def _colocation_is_possible(self) -> "LibraConfig":
        if self.rollout.mode == "colocated" and self.training.streamed:
            raise ValueError(
                "training.streamed needs engines and trainer side by side, but rollout.mode is colocated; switch one of them off"
            )
        if self.rollout.mode == "colocated" and self.backend.kind == "gpu":
            raise ValueError(
                "rollout.mode = colocated runs on backend.kind = cpu only: the engines do not release GPU memory yet; "
                "use asynchronous"
            )
        return self

    @model_validator(mode="after")
    def _tiny_policy_divides(self) -> "LibraConfig":
        if self.model.path is not None or self.backend.kind == "simulated":
            return self
        tiny = self.model.tiny
        degrees = {self.training.layout.tp, *(group.tp for group in self.rollout.engines)}
        for tp in sorted(degrees):
            if tiny.num_heads % tp or tiny.num_kv_heads % tp:
                raise ValueError(
                    f"tp {tp} does not divide the {tiny.num_heads} heads and {tiny.num_kv_heads} key-value heads of model.tiny; "
                    "choose a tp that divides both"
                )
        if tiny.num_layers % self.training.layout.pp:
            raise ValueError(
                f"training.layout.pp = {self.training.layout.pp} does not divide the {tiny.num_layers} layers of model.tiny"
            )
        if self.rollout.max_context_tokens >= tiny.max_positions:  # the engine scores a full context by one token more
            raise ValueError(
                f"rollout.max_context_tokens ({self.rollout.max_context_tokens}) must be below model.tiny.max_positions "
                f"({tiny.max_positions}); lower the first or raise the second"
            )
        return self
