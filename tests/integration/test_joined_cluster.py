"""A run on somebody's Ray cluster of two nodes: both are raylets of this host, so nothing crosses a real network."""

import socket
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import ray
from ray.cluster_utils import Cluster
from ray.util import placement_group_table

from libra_core.errors import ResourceError
from libra_core.planning.transition import transition
from tests.integration.sessions import iterate, random_policy, run_until, session, small_config

pytestmark = pytest.mark.integration


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return random_policy(tmp_path_factory.mktemp("model") / "policy")


@pytest.fixture
def cluster() -> Iterator[str]:
    """Two nodes with one and two slots: trainer and two engines fill both."""
    shared = {"num_cpus": 1, "object_store_memory": 256 << 20}
    nodes = Cluster(initialize_head=True, head_node_args={**shared, "resources": {"gpu_slot": 1.0}})
    try:
        nodes.add_node(**shared, resources={"gpu_slot": 2.0})
        nodes.wait_for_nodes(timeout=60)
        yield nodes.address
    finally:
        nodes.shutdown()


def test_trainer_and_engines_on_two_nodes_of_a_joined_cluster_train_and_leave_it_running(
    cluster: str, model: Path, tmp_path: Path
) -> None:
    config = small_config(
        model, tmp_path, backend={"ray_address": cluster}, rollout={"engines": [{"tp": 1, "count": 2}]}, training={"steps": 2}
    )
    with session(config, tmp_path / "run") as connection:
        placed = [group for group in placement_group_table().values() if group["state"] == "CREATED"]
        assert len({node for group in placed for node in group["bundles_to_node_id"].values()}) == 2
        for step in range(2):
            rollout, update, publication = iterate(connection, step)
            assert rollout.groups == 4
            assert publication.policy_version == update.policy_version
            assert len(publication.engines) == 2, "by broadcast, since the engines may be on other hosts"
            assert publication.canary_max_error < 1e-4
    ray.init(address=cluster, log_to_driver=False)
    try:
        assert ray.available_resources()["gpu_slot"] == 3.0, "everything was given back"
    finally:
        ray.shutdown()


@pytest.mark.slow
def test_a_hybrid_of_another_node_trains_and_serves_again_with_weights_by_broadcast(
    cluster: str, model: Path, tmp_path: Path
) -> None:
    config = small_config(
        model,
        tmp_path,
        backend={"ray_address": cluster},
        rollout={"engines": [{"tp": 1, "count": 2}], "max_new_tokens": 64},
        training={"steps": 5000, "loss": {"entropy_coefficient": 0.01}},
        elastic={"hybrid_replicas": 1, "contribution_s": 20.0},
    )
    with session(config, tmp_path / "run") as connection:
        assert not config.weights_by_file
        controller = connection.controller
        serving = controller.plan()
        training = replace(serving, hybrids_training=1)
        step = 0
        for source, target, engines in ((serving, training, {"engine-0"}), (training, serving, {"engine-0", "hybrid-0"})):
            iterate(connection, step)
            controller.begin(transition(source, target))
            step, _ = run_until(connection, step + 1, lambda: controller.outcome() is not None)
            outcome = controller.outcome()
            assert outcome.applied, outcome.error
            _, update, publication = iterate(connection, step)
            assert update.hybrid_replicas == target.hybrids_training
            assert {part.engine_id for part in publication.engines} == engines
            assert publication.canary_max_error < 1e-4
            step += 1
        audit = connection.rollout.audit()
        assert (audit.lost, audit.doubled, audit.failed) == (0, 0, 0)
        assert audit.taken == audit.trained == 16 * step


def test_no_cluster_at_the_address_is_a_sentence_within_seconds(model: Path, tmp_path: Path) -> None:
    started_s = time.monotonic()
    config = small_config(model, tmp_path, backend={"ray_address": f"127.0.0.1:{_free_port()}"})
    with pytest.raises(ResourceError, match="no Ray cluster answers at"), session(config, tmp_path / "run"):
        pass
    assert time.monotonic() - started_s < 20


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
