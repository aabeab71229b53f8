"""A certificate for a plan: its ranks compute what one device computes, at sizes shrunk for it.

::

    plan ─► shrink ─► stand_in ─┬─► ranks        real programs, in threads ─┬─► compare
                                └─► one_device   no pipeline, no replicas ──┘      │
                                                                              certificate

Everything is computed in float64, so that a difference is an error of a program and no rounding.

Nothing is imported here: `shrink` needs no jax, and says how many devices the rest needs.
"""
