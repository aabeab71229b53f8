"""A run of trackio, which keeps it on this machine unless it is told of a place elsewhere.

A run that goes on is the same one there. What it has of steps that are done again stays as it is.
"""

from collections.abc import Mapping
from importlib import import_module
from typing import Any

from jaxpipe.runtime.metrics.trackers.tracker import TrackedRun


class TrackioRun:
    """A run under the project of `run.project`; `trackio show` draws it."""

    def __init__(self, tracked: TrackedRun) -> None:
        trackio: Any = import_module("trackio")
        self._told_step = tracked.told_step
        self._run: Any = trackio.init(
            project=tracked.project,
            name=tracked.name,
            config=dict(tracked.description),
            resume="allow" if tracked.first_step else "never",
            embed=False,
            auto_log_gpu=False,
            auto_log_cpu=False,
        )

    def tell(self, step: int, values: Mapping[str, float]) -> None:
        """Log the values of a step that is new."""
        if step > self._told_step:
            self._run.log(dict(values), step=step)

    def close(self) -> None:
        """Write what is left."""
        self._run.finish()
