"""What a checkpoint has of one island: its own tensors, and those that all islands share."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from jaxpipe.runtime.outer.outer_tensor_names import (
    COUNTERS,
    IN_SYNC,
    MOMENTUM,
    counted,
    is_moment,
    of_island,
)
from jaxpipe.runtime.train_snapshot import Saved


@dataclass(frozen=True, slots=True)
class IslandState:
    """What a checkpoint has of one island, under the names of a run without an outer loop."""

    saved: Saved
    number: int

    @property
    def step(self) -> int:
        """The number of inner steps trained."""
        return self.saved.step

    @property
    def metadata(self) -> Mapping[str, Any]:
        """The metadata, with the loss scale and the skipped steps of the island."""
        name = of_island(self.number, COUNTERS)
        return {**self.saved.metadata, **counted(self.saved.read([name])[name])}

    @property
    def tensors(self) -> Mapping[str, Any]:
        """Those of all islands."""
        return self.saved.tensors

    def read(self, names: Iterable[str]) -> dict[str, np.ndarray]:
        """Return some tensors by their names.

        Raises:
            CheckpointError: one of them is missing or corrupt.
        """
        in_sync = bool(self.saved.metadata.get(IN_SYNC, False))
        stored = {
            name: of_island(self.number, name)
            if is_moment(name) or not (in_sync or self._is_shared(name))
            else name
            for name in names
        }
        tensors = self.saved.read(stored.values())
        return {name: tensors[in_file] for name, in_file in stored.items()}

    def _is_shared(self, name: str) -> bool:
        """Return whether a parameter is frozen: it is saved, and has no momentum."""
        tensors = self.saved.tensors
        return name in tensors and MOMENTUM + name not in tensors
