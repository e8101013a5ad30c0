"""The elastic hybrid pool: who is a member, and how a joined replica exchanges gradients with the core."""
