"""Emulated clusters: what a probe finds in them, and steps over them beside their simulation."""
