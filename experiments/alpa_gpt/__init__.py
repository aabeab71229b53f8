"""Alpa's published GPT benchmark beside what stock JAX compiles today."""
