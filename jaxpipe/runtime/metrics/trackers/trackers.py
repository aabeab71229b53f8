"""All trackers of a run, as rank 0 tells them.

Which package each kind of tracker needs, and whether it is there.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from importlib.util import find_spec

from jaxpipe.errors import ConfigError
from jaxpipe.runtime.config import TrackerKind
from jaxpipe.runtime.metrics.records import StepMetrics
from jaxpipe.runtime.metrics.trackers.background import BackgroundTracker
from jaxpipe.runtime.metrics.trackers.tensorboard import TensorBoardFile
from jaxpipe.runtime.metrics.trackers.tracker import TrackedRun, Tracker
from jaxpipe.runtime.metrics.trackers.trackio import TrackioRun
from jaxpipe.runtime.metrics.trackers.wandb import WandbRun

_PATIENCE_S = 30.0
"""How long the end of a run waits for a tracker that is behind."""

MAKERS: Mapping[TrackerKind, Callable[[TrackedRun], Tracker]] = {
    TrackerKind.TENSORBOARD: TensorBoardFile,
    TrackerKind.TRACKIO: TrackioRun,
    TrackerKind.WANDB: WandbRun,
}


class Trackers:
    """Tells every tracker of each step, and waits for none of them but at the end."""

    def __init__(
        self,
        kinds: Sequence[TrackerKind],
        tracked: TrackedRun,
        *,
        makers: Mapping[TrackerKind, Callable[[TrackedRun], Tracker]] = MAKERS,
    ) -> None:
        self._all = [BackgroundTracker(kind, partial(makers[kind], tracked)) for kind in kinds]

    def tell(self, metrics: StepMetrics) -> None:
        """Tell all that is a number in these metrics, by the names of `metrics.jsonl`."""
        values = {name: value for name, value in asdict(metrics).items() if value is not None}
        step = values.pop("step")
        for each in self._all:
            each.tell(step, values)

    def close(self) -> None:
        """Wait until they have done with what they were told, but not for ever."""
        for each in self._all:
            each.close(timeout_s=_PATIENCE_S)


_MODULES = {
    TrackerKind.TENSORBOARD: "tensorboardX",
    TrackerKind.TRACKIO: "trackio",
    TrackerKind.WANDB: "wandb",
}


def check_installed(kinds: Sequence[TrackerKind]) -> None:
    """Check that these trackers can be imported; none of them is.

    Raises:
        ConfigError: one is not installed.
    """
    for kind in kinds:
        if find_spec(_MODULES[kind]) is None:
            raise ConfigError(
                f"a tracker is a package of its own: `run.trackers` has {kind}, and "
                f"{_MODULES[kind]} is not installed; pip install 'jaxpipe[{kind}]', or leave it out"
            )
