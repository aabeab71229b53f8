"""Adapters to the packages of TensorBoard, trackio and W&B, each imported where it is created.

Steps that a resumed run repeats differ: TensorBoard drops what older files have of them, trackio
and W&B keep the first values, since neither can overwrite a step.
"""

from collections.abc import Mapping
from importlib import import_module
from typing import Any

from jaxpipe.runtime.metrics.trackers.tracker import TrackedRun


class TensorBoardFile:
    """An event file in the folder `tensorboard` of the run, flushed after each step."""

    def __init__(self, tracked: TrackedRun) -> None:
        self._writer: Any = import_module("tensorboardX").SummaryWriter(
            str(tracked.folder / "tensorboard"),
            # The first step that is repeated: steps count from 1.
            purge_step=tracked.first_step + 1,
            # File names are seconds and the host: two attempts within a second would share one.
            filename_suffix=f".{tracked.first_step:08d}",
        )

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Write one scalar per value."""
        for name, value in values.items():
            self._writer.add_scalar(name, value, step)
        self._writer.flush()

    def close(self) -> None:
        """Close the file."""
        self._writer.close()


class TrackioRun:
    """A run of the project `run.project`, on this machine unless trackio is configured otherwise.

    `trackio show` displays it.
    """

    def __init__(self, tracked: TrackedRun) -> None:
        trackio: Any = import_module("trackio")
        self._logged_step = tracked.logged_step
        self._run: Any = trackio.init(
            project=tracked.project,
            name=tracked.name,
            config=dict(tracked.description),
            resume="allow" if tracked.first_step else "never",
            embed=False,
            auto_log_gpu=False,
            auto_log_cpu=False,
        )

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Log the values of a step, unless it is there already."""
        if step > self._logged_step:
            self._run.log(dict(values), step=step)

    def close(self) -> None:
        """Write what is left."""
        self._run.finish()


class WandbRun:
    """A run of the W&B project `run.project`; its files are in the folder `wandb` of the run.

    With `WANDB_MODE=offline` they stay there.
    """

    def __init__(self, tracked: TrackedRun) -> None:
        wandb: Any = import_module("wandb")
        self._logged_step = tracked.logged_step
        self._run: Any = wandb.init(
            project=tracked.project,
            id=tracked.key,
            name=tracked.name,
            dir=str(tracked.folder),
            config=dict(tracked.description),
            resume="allow" if tracked.first_step else None,
            settings=wandb.Settings(console="off", silent=True),
        )

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Log the values of a step, unless it is there already."""
        if step > self._logged_step:
            self._run.log(dict(values), step=step)

    def close(self) -> None:
        """Upload, or write, what is left."""
        self._run.finish()
