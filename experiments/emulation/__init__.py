"""Emulated clusters: links found by probes, and training steps compared with their simulation."""
