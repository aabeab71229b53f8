"""Flat jaxprs, the one place that reads the parameters of JAX's equations, and tested versions."""

from jaxpipe.jaxpr.evaluate_equation import Values, compute, read, run_scan
from jaxpipe.jaxpr.flatten import (
    Equation,
    FlatJaxpr,
    Scan,
    Variable,
    flatten,
    live,
    varying,
)
from jaxpipe.jaxpr.tested_jax import TESTED, is_tested, warn_if_untested

__all__ = [
    "TESTED",
    "Equation",
    "FlatJaxpr",
    "Scan",
    "Values",
    "Variable",
    "compute",
    "flatten",
    "is_tested",
    "live",
    "read",
    "run_scan",
    "varying",
    "warn_if_untested",
]
