"""The same code on other versions of Python, JAX and what it needs next to them."""
