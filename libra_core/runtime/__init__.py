"""Ray: session, actors, clients, placement. The only room that imports ray."""
