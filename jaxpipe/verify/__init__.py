"""A certificate for a plan: its ranks compute what one device computes, at sizes shrunk for it.

::

    plan ─► shrink ─► stand_in ─┬─► ranks        real programs, in threads ─┐
                                │                                           ├─► compare ─► Certificate
                                └─► one_device   no pipeline, no replicas ───┘

Everything is computed in float64, so that a difference is an error of a program and no rounding.
"""

from jaxpipe.verify.certificate import Certificate, verify_plan

__all__ = ["Certificate", "verify_plan"]
