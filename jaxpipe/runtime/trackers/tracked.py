"""What a tracker has to know of a run before its first step."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Tracked:
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
