"""Who else is told of each step: TensorBoard, Weights & Biases, trackio.

::

    metrics.jsonl ◄── rank 0 ──► Trackers ──► queue ──► a thread to each ──► tracker

The lines of JSON are what a run keeps. Trackers show them elsewhere; each has a thread of its own,
and what it does, how long, and whether it fails costs the training nothing.
"""

from jaxpipe.runtime.trackers.beside import Beside
from jaxpipe.runtime.trackers.installed import check_installed
from jaxpipe.runtime.trackers.tracked import Tracked
from jaxpipe.runtime.trackers.tracker import Tracker
from jaxpipe.runtime.trackers.trackers import Trackers

__all__ = ["Beside", "Tracked", "Tracker", "Trackers", "check_installed"]
