"""A certificate for a plan: its ranks compute what one device computes, at sizes shrunk for it.

::

    smaller_plan ─► stand_in ───┬─► ranks        real programs, in threads ─┬─► differences
                                └─► one_device   no pipeline, no replicas ──┘      │
                                                                              certificate

Everything is computed in float64, so that a difference is an error of a program and no rounding.

Nothing is imported here: `smaller_plan` needs no jax, and says how many devices the rest needs.
"""
