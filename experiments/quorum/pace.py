"""The emulated pace of an island: the least time between the starts of two steps.

The computation is real; the time of a step is that of the slower device that it stands for.
"""

import os
import time
from pathlib import Path
from typing import Any, Final

from jaxpipe.runtime.hooks import Hooks

STEP_S: Final = "JAXPIPE_EXPERIMENT_STEP_S"
"""The variable with the seconds of a step of each rank, with commas in between."""


class Pace(Hooks):
    """Waits before a step until it is due."""

    def __init__(self, step_s: float) -> None:
        self._step_s = step_s
        self._due_s = time.monotonic()

    def after_read(self, *_: Any, **__: Any) -> None:
        """Called when the samples of a step have been read."""
        time.sleep(max(0.0, self._due_s - time.monotonic()))
        # From now on, so that time that was waited for others is not caught up.
        self._due_s = time.monotonic() + self._step_s


def hooks(config: Path, rank: int) -> Hooks:
    """Return the hooks of a rank."""
    del config
    return Pace([float(step_s) for step_s in os.environ[STEP_S].split(",")][rank])
