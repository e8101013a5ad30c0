"""What the side channel is told, where a hybrid replica's shards connect, and buffers that several senders hold."""

import pytest

from libra_core.elastic.buffers import BufferPool
from libra_core.elastic.endpoint import CoreEndpoint, Serves, Shard
from libra_core.elastic.spec import Address, ElasticSpec, shard_endpoints
from libra_core.errors import ConfigError, ResourceError


def addresses(count: int) -> list[Address | None]:
    return [("10.0.0.1", 9000 + rank) for rank in range(count)]


def ports(shards: tuple[tuple[Address, ...], ...]) -> list[list[int]]:
    return [[port - 9000 for _, port in shard] for shard in shards]


@pytest.mark.parametrize(("slot", "leader"), [(0, 0), (1, 1), (2, 0), (5, 1)])
def test_slots_are_spread_over_the_data_parallel_ranks(slot: int, leader: int) -> None:
    found = shard_endpoints(addresses(2), slot=slot, model_parallel=(1, 1), distributed_optimizer=False)
    assert ports(found) == [[leader]]


def test_each_shard_connects_to_the_core_ranks_of_its_own_shard() -> None:
    """tp 2, pp 2, dp 2: ranks count TP fastest, then DP, then PP."""
    found = shard_endpoints(addresses(8), slot=1, model_parallel=(2, 2), distributed_optimizer=False)
    assert ports(found) == [[2], [3], [6], [7]]


def test_with_a_distributed_optimizer_every_data_parallel_rank_serves_and_the_leader_is_first() -> None:
    found = shard_endpoints(addresses(6), slot=2, model_parallel=(2, 1), distributed_optimizer=True)
    assert ports(found) == [[4, 0, 2], [5, 1, 3]]


def test_a_buffer_comes_back_when_the_last_holder_lets_go() -> None:
    pool = BufferPool(8)
    pool.reserve(1)
    buffer = pool.take()
    buffer.hold()
    buffer.release()
    assert pool.take() is not buffer
    buffer.release()
    assert pool.take() is buffer


@pytest.mark.parametrize("host", ["", "0.0.0.0", "::", "0", "0x0", "0.0", "::0", "*"])
def test_the_channel_is_bound_to_one_interface(host: str) -> None:
    with pytest.raises(ConfigError, match="may not listen on every interface"):
        ElasticSpec(secret=b"s" * 32, slots=1, host=host)


def test_a_short_secret_is_refused_and_none_is_shown() -> None:
    with pytest.raises(ConfigError, match="has 3 bytes, at least 32"):
        ElasticSpec(secret=b"abc", slots=1)
    assert "secret" not in repr(ElasticSpec(secret=b"s" * 32, slots=1))


def test_a_host_of_another_machine_is_refused_in_a_sentence() -> None:
    elsewhere = ElasticSpec(secret=b"s" * 32, slots=1, host="192.0.2.1")
    shard = Shard(tp_rank=0, pp_rank=0, fingerprint=b"f" * 32, gradient_items=1, snapshot_items=3)
    with pytest.raises(ResourceError, match=r"cannot listen on 192\.0\.2\.1 .* one of this machine's interfaces"):
        CoreEndpoint(elsewhere, shard, Serves(leads=frozenset({0}), snapshots=frozenset({0})))
