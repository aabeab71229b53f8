"""TensorBoard's event files, in the folder `tensorboard` of the run; written by tensorboardX.

Where a run goes on, its file says from which step, and TensorBoard drops what older files have of
that step and later ones.
"""

from collections.abc import Mapping
from importlib import import_module
from typing import Any

from jaxpipe.runtime.metrics.trackers.tracker import TrackedRun


class TensorBoardFile:
    """A file of events; each step is in it before the next is told."""

    def __init__(self, tracked: TrackedRun) -> None:
        self._writer: Any = import_module("tensorboardX").SummaryWriter(
            str(tracked.folder / "tensorboard"),
            purge_step=tracked.first_step + 1,
            # Names are seconds and the host: two attempts within a second would have one file.
            filename_suffix=f".{tracked.first_step:08d}",
        )

    def tell(self, step: int, values: Mapping[str, float]) -> None:
        """Write a scalar for each value."""
        for name, value in values.items():
            self._writer.add_scalar(name, value, step)
        self._writer.flush()

    def close(self) -> None:
        """Close the file."""
        self._writer.close()
