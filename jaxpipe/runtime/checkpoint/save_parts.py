"""What a rank contributes to a checkpoint: its tensors, and then its report of what it wrote."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from jaxpipe.runtime.checkpoint.make_room import error_number
from jaxpipe.runtime.checkpoint.manifest import TensorEntry


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """One rank's part of the state after `step` steps, in arrays that nothing else refers to.

    `shards` maps the name of a file to its tensors, by their names.
    """

    step: int
    shards: Mapping[str, Mapping[str, np.ndarray]]
    metadata: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Written:
    """The report of a rank: the entries that it wrote, or why not, with its `errno`.

    `headers` has the checksum of the header of each file, where the ranks share no folder.
    """

    entries: tuple[TensorEntry, ...] = ()
    headers: Mapping[str, str] = field(default_factory=dict)
    failure: str = ""
    number: int | None = None

    @classmethod
    def of(cls, error: Exception) -> "Written":
        """Return the report of a rank that could not write."""
        return cls(failure=str(error), number=error_number(error))

    @property
    def files(self) -> tuple[str, ...]:
        """The names of the files, in order."""
        return tuple(dict.fromkeys(entry.file for entry in self.entries))
