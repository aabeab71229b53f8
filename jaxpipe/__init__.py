"""Pipeline- and data-parallel training in JAX on heterogeneous, far-apart devices."""
