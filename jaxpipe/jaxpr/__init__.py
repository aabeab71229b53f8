"""Flat jaxprs, and the one place that reads the parameters of JAX's equations."""

from jaxpipe.jaxpr.evaluate import Values, compute, read, run_scan
from jaxpipe.jaxpr.flatten import (
    Equation,
    FlatJaxpr,
    Scan,
    Variable,
    flatten,
    live,
    varying,
)

__all__ = [
    "Equation",
    "FlatJaxpr",
    "Scan",
    "Values",
    "Variable",
    "compute",
    "flatten",
    "live",
    "read",
    "run_scan",
    "varying",
]
