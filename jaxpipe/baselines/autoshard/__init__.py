"""Automatic sharding: one SPMD program on all devices, its arrays sharded over a mesh."""
