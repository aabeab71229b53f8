"""Mixture of experts: a layer whose MLP is one of several, chosen for each token.

::

    x (batch, seq, dim) ─┬─ router ─ softmax ─ top k ─┬─ gates ────────────────┐
                         │                            └─ dispatch              │
                         └──────────────► slots (expert, batch, capacity) ─► experts ─► combine ─► y

- `routing`: the options, and the capacity of an expert; importable without jax
- `router`: gates and experts of each token, their slots, and the optional auxiliary losses
- `dispatch`: two ways to bring tokens to experts and back
- `mixture`: the experts, as a module; `mixture_costs`: their costs in closed form
"""
