"""Optional services that show the metrics of a run: TensorBoard, trackio, Weights & Biases.

::

    metrics.jsonl ◄── rank 0 ──► Trackers ──► queue ──► one thread each ──► Tracker (adapters)

`metrics.jsonl` is the record of a run; trackers show it elsewhere. Each runs in a thread of its
own: a slow or failing service neither delays nor ends the training.
"""

from jaxpipe.runtime.metrics.trackers.background import BackgroundTracker
from jaxpipe.runtime.metrics.trackers.tracker import TrackedRun, Tracker
from jaxpipe.runtime.metrics.trackers.trackers import Trackers, check_installed

__all__ = ["BackgroundTracker", "TrackedRun", "Tracker", "Trackers", "check_installed"]
