"""Hooks of ranks whose steps take at least a quarter of a second: time for something else."""

import time
from pathlib import Path

import numpy as np

from jaxpipe.plan import Plan
from jaxpipe.runtime.hooks import Hooks

_SECONDS = 0.25


class _Slow(Hooks):
    def after_read(self, plan: Plan, tokens: np.ndarray | None, *, rank: int, step: int) -> None:  # noqa: ARG002
        """Wait, as all other ranks do."""
        time.sleep(_SECONDS)


def slow(config: Path, *, rank: int) -> Hooks:
    """Return the hooks of a rank."""
    return _Slow()
