"""In the controller's process: the active plan, the places of engines and replicas, and moves between them."""
