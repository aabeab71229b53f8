"""All trackers of a run, as rank 0 tells them."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from functools import partial

from jaxpipe.runtime.metrics import StepMetrics
from jaxpipe.runtime.settings import TrackerKind
from jaxpipe.runtime.trackers.beside import Beside
from jaxpipe.runtime.trackers.tensorboard_file import TensorBoardFile
from jaxpipe.runtime.trackers.tracked import Tracked
from jaxpipe.runtime.trackers.tracker import Tracker
from jaxpipe.runtime.trackers.trackio_run import TrackioRun
from jaxpipe.runtime.trackers.wandb_run import WandbRun

_PATIENCE_S = 30.0
"""How long the end of a run waits for a tracker that is behind."""

MAKERS: Mapping[TrackerKind, Callable[[Tracked], Tracker]] = {
    TrackerKind.TENSORBOARD: TensorBoardFile,
    TrackerKind.TRACKIO: TrackioRun,
    TrackerKind.WANDB: WandbRun,
}


class Trackers:
    """Tells every tracker of each step, and waits for none of them but at the end."""

    def __init__(
        self,
        kinds: Sequence[TrackerKind],
        tracked: Tracked,
        *,
        makers: Mapping[TrackerKind, Callable[[Tracked], Tracker]] = MAKERS,
    ) -> None:
        self._all = [Beside(kind, partial(makers[kind], tracked)) for kind in kinds]

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
