"""What the two ends of the side channel are told when they start."""

import socket
from collections.abc import Sequence
from dataclasses import dataclass, field
from ipaddress import ip_address

from libra_core.elastic.handshake import SECRET_BYTES
from libra_core.errors import ConfigError

Address = tuple[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class ElasticSpec:
    """The same on the core's ranks and on every hybrid replica of a run."""

    secret: bytes = field(repr=False)
    """Made anew for each run, never written down."""
    slots: int
    """Hybrid replicas that may ever join."""
    host: str = "127.0.0.1"
    """Address of the one interface that the core listens on."""
    contribution_s: float = 30.0
    """How long a step waits for the contribution of an active replica; then it goes on without."""
    frame_s: float = 60.0
    """How long one message may take."""
    queue_steps: int = 16
    """Published gradients that are kept for replicas that lag; one that lags further fetches a fresh snapshot."""
    check_every_steps: int = 50
    """Parameters are compared at activation and every so many steps."""

    def __post_init__(self) -> None:
        if _is_any_interface(self.host):
            raise ConfigError(
                f"the side channel may not listen on every interface ({self.host!r}); give the address of the cluster's own"
            )
        if len(self.secret) < SECRET_BYTES:
            raise ConfigError(f"the side channel's secret has {len(self.secret)} bytes, at least {SECRET_BYTES} are needed")


@dataclass(frozen=True, slots=True, kw_only=True)
class HybridSpec:
    """What a hybrid replica is told besides: where it stands, and where the core listens."""

    slot: int
    core_dp: int
    """Replicas of the core; the batch is shared over them first."""
    endpoints: tuple[tuple[Address, ...], ...]
    """By shard of this replica, in rank order: the core ranks that serve it, the one that leads it first."""


def shard_endpoints(
    addresses: Sequence[Address | None], *, slot: int, model_parallel: tuple[int, int], distributed_optimizer: bool
) -> tuple[tuple[Address, ...], ...]:
    """`HybridSpec.endpoints` from where the core's ranks listen, in rank order; `model_parallel` is (tp, pp).

    Ranks count TP fastest, then DP, then PP. With a distributed optimizer every data-parallel rank of a shard holds a part of the
    snapshot.
    """
    tp, pp = model_parallel
    dp = len(addresses) // (tp * pp)
    leader = slot % dp
    order = [leader, *(rank for rank in range(dp) if rank != leader)] if distributed_optimizer else [leader]
    shards: list[tuple[Address, ...]] = []
    for stage in range(pp):
        for column in range(tp):
            endpoints = [addresses[column + tp * (rank + dp * stage)] for rank in order]
            shards.append(tuple(address for address in endpoints if address is not None))
    return tuple(shards)


def _is_any_interface(host: str) -> bool:
    """However it is written: `0` and `0x0` are 0.0.0.0 to the system. A name is none."""
    if host in ("", "*"):
        return True
    try:
        resolved = socket.getaddrinfo(host, None, flags=socket.AI_NUMERICHOST)
    except socket.gaierror:
        return False
    return any(ip_address(str(address[0])).is_unspecified for *_, address in resolved)
