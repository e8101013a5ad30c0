"""A running session whose hybrid replica changes sides: real engines, core and replica; nothing lost, nothing doubled."""

from dataclasses import replace
from pathlib import Path

import pytest
import ray

from libra_core.config import LibraConfig
from libra_core.planning.transition import transition
from tests.integration.sessions import iterate, own_processes, random_policy, run_until, session, small_config

pytestmark = [pytest.mark.integration, pytest.mark.slow]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return random_policy(tmp_path_factory.mktemp("model") / "policy")


def elastic(model: Path, root: Path, idle_engine: str, *, engines: int = 2, tp: int = 1) -> LibraConfig:
    """An entropy term gives babble, whose rewards are all 0, a gradient: the replica has something to add."""
    return small_config(
        model,
        root,
        rollout={"engines": [{"tp": 1, "count": engines}], "max_new_tokens": 64},
        training={"steps": 5000, "layout": {"tp": tp}, "loss": {"entropy_coefficient": 0.01}},
        elastic={"hybrid_replicas": 1, "contribution_s": 20.0, "idle_engine": idle_engine},
    )


def test_a_hybrid_trains_and_serves_again_while_the_core_keeps_stepping(model: Path, tmp_path: Path) -> None:
    config = elastic(model, tmp_path, "sleep")
    with session(config, tmp_path / "run") as connection:
        controller = connection.controller
        serving = controller.plan()
        training = replace(serving, hybrids_training=1)
        iterate(connection, 0)

        controller.begin(transition(serving, training))
        step, _ = run_until(connection, 1, lambda: controller.outcome() is not None)
        joined = controller.outcome()
        assert joined.applied, joined.error
        assert controller.plan() == training
        assert len(connection.rollout.stats()) == 1
        updates = [iterate(connection, number)[1] for number in range(step, step + 3)]
        assert [update.hybrid_replicas for update in updates] == [1, 1, 1]
        assert all(0 < update.hybrid_tokens < update.tokens for update in updates)

        controller.begin(transition(training, serving))
        step, _ = run_until(connection, step + 3, lambda: controller.outcome() is not None)
        back = controller.outcome()
        assert back.applied, back.error
        assert controller.plan() == serving
        _, update, publication = iterate(connection, step)
        assert update.hybrid_replicas == 0
        assert {part.engine_id for part in publication.engines} == {"engine-0", "hybrid-0"}, "it slept"
        print("seconds by action", joined.seconds, back.seconds)

        audit = connection.rollout.audit()
        assert (audit.lost, audit.doubled, audit.failed) == (0, 0, 0)
        assert audit.taken == audit.trained == 16 * (step + 1)


def test_a_hybrid_of_two_devices_lends_them_to_a_replica_of_tp_2_and_starts_anew_where_a_sleeping_engine_died(
    model: Path, tmp_path: Path
) -> None:
    with session(elastic(model, tmp_path, "sleep", engines=3, tp=2), tmp_path / "run") as connection:
        controller = connection.controller
        serving = controller.plan()
        training = replace(serving, hybrids_training=1)
        iterate(connection, 0)
        step = 1
        for target, dies, names in (
            (training, "", {"engine-0"}),
            (serving, "", {"engine-0", "hybrid-0.0", "hybrid-0.1"}),
            (training, "hybrid-0.1", {"engine-0"}),
            (serving, "", {"engine-0", "hybrid-0.0e1", "hybrid-0.1e1"}),
        ):
            controller.begin(transition(controller.plan(), target))
            step, _ = run_until(connection, step, lambda: controller.outcome() is not None)
            outcome = controller.outcome()
            assert outcome.applied, outcome.error
            _, update, publication = iterate(connection, step)
            step += 1
            assert update.hybrid_replicas == target.hybrids_training
            assert {part.engine_id for part in publication.engines} == names
            print("seconds by action", outcome.seconds)
            if dies:
                ray.kill(ray.get_actor(dies))
        audit = connection.rollout.audit()
        assert (audit.lost, audit.doubled, audit.failed) == (0, 0, 0)
        assert audit.taken == audit.trained == 16 * step


def test_a_hybrid_killed_while_it_trains_costs_nothing_but_its_own_time(model: Path, tmp_path: Path) -> None:
    config = elastic(model, tmp_path, "stop")
    with session(config, tmp_path / "run") as connection:
        controller = connection.controller
        serving = controller.plan()
        iterate(connection, 0)
        controller.begin(transition(serving, replace(serving, hybrids_training=1)))
        step, _ = run_until(connection, 1, lambda: controller.outcome() is not None)
        assert controller.outcome().applied, controller.outcome().error
        assert iterate(connection, step)[1].hybrid_replicas == 1

        rollout = connection.rollout.take_batch(step + 1)
        own_processes("ray::ReplicaActor")[0].kill()
        connection.reward.score(rollout.batch_id)
        update = connection.trainer.update(rollout.batch_id, rollout.policy_version)
        connection.rollout.publish(update.policy_version)
        assert update.hybrid_replicas == 0
        assert update.lost_sequences > 0, "the core trains in the same step what the replica held"
        assert update.hybrid_wait_s < config.elastic.contribution_s

        step, _ = run_until(connection, step + 2, lambda: controller.recoveries())
        (recovery,) = controller.recoveries()
        assert recovery.error == ""
        assert recovery.serving_s is not None
        assert controller.plan() == serving
        _, _, publication = iterate(connection, step)
        assert {part.engine_id for part in publication.engines} == {"engine-0", "hybrid-0e1"}
        print("seconds from loss to full service", recovery.serving_s - recovery.lost_s)

        audit = connection.rollout.audit()
        assert (audit.lost, audit.doubled, audit.failed) == (0, 0, 0)
        assert audit.taken == audit.trained == 16 * (step + 1)
