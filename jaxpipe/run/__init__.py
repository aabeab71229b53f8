"""The life of a run. Nothing is imported here: `threads` takes jax, `forecast` does not."""
