"""Alpa's published GPT benchmark compared with the output of stock JAX's compiler."""
