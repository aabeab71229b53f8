"""All trackers of a run, on rank 0, and the package that each kind needs."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from importlib.util import find_spec

from jaxpipe.errors import ConfigError
from jaxpipe.runtime.config import TrackerKind
from jaxpipe.runtime.metrics.records import StepMetrics
from jaxpipe.runtime.metrics.trackers.adapters import TensorBoardFile, TrackioRun, WandbRun
from jaxpipe.runtime.metrics.trackers.background import BackgroundTracker
from jaxpipe.runtime.metrics.trackers.tracker import TrackedRun, Tracker

_CLOSE_TIMEOUT_S = 30.0
"""How long the end of a run waits for each tracker that is behind."""

MAKERS: Mapping[TrackerKind, Callable[[TrackedRun], Tracker]] = {
    TrackerKind.TENSORBOARD: TensorBoardFile,
    TrackerKind.TRACKIO: TrackioRun,
    TrackerKind.WANDB: WandbRun,
}


class Trackers:
    """Logs each step to every tracker, without waiting for any until `close`."""

    def __init__(
        self,
        kinds: Sequence[TrackerKind],
        tracked: TrackedRun,
        *,
        makers: Mapping[TrackerKind, Callable[[TrackedRun], Tracker]] = MAKERS,
    ) -> None:
        self._all = [BackgroundTracker(kind, partial(makers[kind], tracked)) for kind in kinds]

    def log(self, metrics: StepMetrics) -> None:
        """Log the metrics that are numbers, by their names in `metrics.jsonl`."""
        values = {name: value for name, value in asdict(metrics).items() if value is not None}
        step = values.pop("step")
        for each in self._all:
            each.log(step, values)

    def close(self) -> None:
        """Wait for all trackers to finish, each for a limited time."""
        for each in self._all:
            each.close(timeout_s=_CLOSE_TIMEOUT_S)  # each has its own: one may hang


_MODULES = {
    TrackerKind.TENSORBOARD: "tensorboardX",
    TrackerKind.TRACKIO: "trackio",
    TrackerKind.WANDB: "wandb",
}


def check_installed(kinds: Sequence[TrackerKind]) -> None:
    """Check that these trackers can be imported, without importing them.

    Raises:
        ConfigError: one is not installed.
    """
    for kind in kinds:
        if find_spec(_MODULES[kind]) is None:
            raise ConfigError(
                f"each tracker needs its own package: `run.trackers` has {kind}, and "
                f"{_MODULES[kind]} is not installed; pip install 'jaxpipe[{kind}]', or leave it out"
            )
