"""Who else is told of each step: TensorBoard, Weights & Biases, trackio.

::

    metrics.jsonl ◄── rank 0 ──► Trackers ──► queue ──► a thread to each ──► tracker

The lines of JSON are what a run keeps. Trackers show them elsewhere; each has a thread of its own,
and what it does, how long, and whether it fails costs the training nothing.
"""

from jaxpipe.runtime.metrics.trackers.background import BackgroundTracker
from jaxpipe.runtime.metrics.trackers.tracker import TrackedRun, Tracker
from jaxpipe.runtime.metrics.trackers.trackers import Trackers, check_installed

__all__ = ["BackgroundTracker", "TrackedRun", "Tracker", "Trackers", "check_installed"]
