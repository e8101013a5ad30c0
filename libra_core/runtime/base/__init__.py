"""Ray itself: calls with deadlines, actors, placement, what a process is given. Imported by the other three."""
