"""The protocol of everything that is told of steps.

What a tracker has to know of a run before its first step.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, runtime_checkable


@runtime_checkable
class Tracker(Protocol):
    """Shows the numbers of a run elsewhere; all its calls come from one thread, in order.

    Whatever it raises is told once, and it is told no more.
    """

    def tell(self, step: int, values: Mapping[str, float]) -> None:
        """Take the numbers of a step; steps count from 1 and rise."""
        ...

    def close(self) -> None:
        """Bring all that was told to where it belongs."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class TrackedRun:
    """A run, as it begins or goes on.

    `key` is the same whenever the run goes on, and another for each run. Training goes on after
    `first_step`, 0 at first; `told_step` is the last one of which a tracker may have been told
    before, and later than `first_step` where steps are done again.
    """

    folder: Path
    project: str
    key: str
    first_step: int
    told_step: int
    description: Mapping[str, Any]

    @property
    def name(self) -> str:
        """What people call the run: its folder, and what tells it from others of that name."""
        return f"{self.folder.name}-{self.key}"
