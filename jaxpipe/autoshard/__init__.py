"""The other way: one program on all devices, its arrays sharded on a mesh."""
