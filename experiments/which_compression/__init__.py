"""Which compression reaches the same loss first, over the links between two regions."""
