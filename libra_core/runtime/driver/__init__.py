"""In the flow's process: the session, typed clients of the actors, weight publication, replanning."""
