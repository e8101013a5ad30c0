"""How a flow finds the actors of its run; small enough to be a Prefect parameter."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionRef:
    """Names, not handles: any process of the host can connect with it."""

    run_id: str
    run_dir: str
    ray_address: str
    namespace: str
