"""Durable files: checksums, atomic writes, JSON that carries its own checksum."""
