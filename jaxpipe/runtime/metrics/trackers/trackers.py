"""All trackers of a run, on rank 0, and the package that each kind needs."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from functools import partial
from importlib.util import find_spec

from jaxpipe.errors import ConfigError
from jaxpipe.runtime.metrics.records import StepMetrics
from jaxpipe.runtime.metrics.trackers.adapters import TensorBoardFile, TrackioRun, WandbRun
from jaxpipe.runtime.metrics.trackers.background import BackgroundTracker
from jaxpipe.runtime.metrics.trackers.tracker import TrackedRun, Tracker
from jaxpipe.runtime.run_config import TrackerKind
from jaxpipe.trace import LinkReport

_CLOSE_TIMEOUT_S = 30.0
"""How long the end of a run waits for trackers that are behind."""

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
        close_timeout_s: float = _CLOSE_TIMEOUT_S,
    ) -> None:
        self._close_timeout_s = close_timeout_s
        self._all = [BackgroundTracker(kind, partial(makers[kind], tracked)) for kind in kinds]

    def log(self, metrics: StepMetrics) -> None:
        """Log the metrics that are numbers, by their names in `metrics.jsonl`.

        The name of a link's value has its ends, and the kind of its traffic.
        """
        flat = asdict(replace(metrics, links=None))
        values = {name: value for name, value in flat.items() if value is not None}
        step = values.pop("step")
        values |= _link_values(metrics.links)
        for tracker in self._all:
            tracker.log(step, values)

    def close(self) -> None:
        """Wait for all trackers to finish, for a limited time.

        It is the same for all: other ranks wait meanwhile, and several services may hang.
        """
        for tracker in self._all:
            tracker.end()
        since_s = time.monotonic()
        for tracker in self._all:
            tracker.close(timeout_s=self._close_timeout_s, since_s=since_s)


def _link_values(report: LinkReport | None) -> dict[str, float]:
    """Return the figures of a report of links, by names such as `links/a-b/gradients/num_bytes`."""
    values: dict[str, float] = {}
    for link in () if report is None else (*report.regions, *report.ranks):
        fields = asdict(link)
        name = "/".join(("links", f"{link.source}-{link.to}", link.traffic))
        values |= {
            f"{name}/{field}".replace(" ", "_"): float(fields[field])
            for field in _LINK_FIELDS
            if fields[field] is not None
        }
    return values


_LINK_FIELDS = ("num_bytes", "seconds", "goodput_bytes_per_s", "efficiency")

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
                f"`run.trackers` has {kind}, and {_MODULES[kind]} is not installed; pip install "
                f"'jaxpipe[{kind}]', or leave it out"
            )
