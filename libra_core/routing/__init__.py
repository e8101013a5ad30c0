"""Which engine holds a trajectory. Pure state machines behind the `RoutingPolicy` port."""
