"""Durable files, for checkpoints and datasets.

- `atomic_write`: files that a crash leaves whole or not at all
- `checksum`: checksums of bytes, arrays and files, and JSON that carries its own
"""
