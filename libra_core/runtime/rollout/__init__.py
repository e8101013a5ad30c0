"""In the coordinator's, store's and scorer's processes: groups, routing, the fleet of engines."""
