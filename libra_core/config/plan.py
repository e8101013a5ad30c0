"""The plan that a configuration asks for: the one reading of it, for planner, session, simulator and replay alike."""

from libra_core.config.models import LibraConfig
from libra_core.types.plan import Plan, RolloutLayout, TrainLayout


def plan_of(config: LibraConfig) -> Plan:
    """Engine groups of one degree are one group: a plan counts engines by degree."""
    layout = config.training.layout
    return Plan(
        train=TrainLayout(tp=layout.tp, pp=layout.pp, dp=layout.dp, micro_batch_tokens=config.training.micro_batch_tokens),
        rollout=RolloutLayout.of((group.tp, group.count) for group in config.rollout.engines),
        hybrid_replicas=config.elastic.hybrid_replicas,
    )
