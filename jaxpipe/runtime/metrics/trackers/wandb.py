"""A run of Weights & Biases; with `WANDB_MODE=offline` it stays in the folder of the run.

A run that goes on is the same one there. What it has of steps that are done again stays as it is.
"""

from collections.abc import Mapping
from importlib import import_module
from typing import Any

from jaxpipe.runtime.metrics.trackers.tracker import TrackedRun


class WandbRun:
    """A run under the project of `run.project`; its files lie in the folder `wandb` of the run."""

    def __init__(self, tracked: TrackedRun) -> None:
        wandb: Any = import_module("wandb")
        self._told_step = tracked.told_step
        self._run: Any = wandb.init(
            project=tracked.project,
            id=tracked.key,
            name=tracked.name,
            dir=str(tracked.folder),
            config=dict(tracked.description),
            resume="allow" if tracked.first_step else None,
            settings=wandb.Settings(console="off", silent=True),
        )

    def tell(self, step: int, values: Mapping[str, float]) -> None:
        """Log the values of a step that is new."""
        if step > self._told_step:
            self._run.log(dict(values), step=step)

    def close(self) -> None:
        """Upload, or write, what is left."""
        self._run.finish()
