"""The event-driven engine: ranks that follow their programs over links that take time."""
