"""How fast TCP restarts after a silence: measured over emulated links, and as modelled."""
