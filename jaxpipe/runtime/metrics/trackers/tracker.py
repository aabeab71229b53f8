"""The interface of a tracker, and the description of a run that it starts from."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, runtime_checkable


@runtime_checkable
class Tracker(Protocol):
    """Shows the metrics of a run elsewhere; all calls come from one thread, in order.

    An exception is logged once, and the tracker is not called again.
    """

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Log the metrics of a step; steps count from 1, in increasing order."""
        ...

    def close(self) -> None:
        """Flush everything that was logged."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class TrackedRun:
    """A run as it starts or resumes.

    `key` identifies the run, also after it is resumed. Training continues after `first_step`, which
    is 0 for a new run. `logged_step` is the last step that trackers may have seen before: it is
    later than `first_step` if a resumed run repeats steps.
    """

    folder: Path
    project: str
    key: str
    first_step: int
    logged_step: int
    description: Mapping[str, Any]

    @property
    def name(self) -> str:
        """The display name: the folder's, and the key, as folders of two runs may be namesakes."""
        return f"{self.folder.name}-{self.key}"
