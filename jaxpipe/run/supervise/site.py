"""Where the attempts of a run take place."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from jaxpipe.errors import CheckpointError
from jaxpipe.run.supervise.ending import Attempt, EndKind
from jaxpipe.runtime.checkpoint import newest_valid
from jaxpipe.runtime.storage.object_folder import Folder


class Site(Protocol):
    """Where the attempts of a run take place: on one host, or on those that are there."""

    @property
    def hosts(self) -> tuple[str, ...] | None:
        """The hosts of the cluster that are there; None if this one stands for all of them."""
        ...

    def run(self, attempt: Attempt) -> tuple[int, EndKind]:
        """Run an attempt to its end, and return its exit code, and how it ended."""
        ...

    def look_round(self) -> None:
        """Find out which hosts are there, after an attempt has failed."""
        ...

    def newest_step(self, place: Folder) -> int | None:
        """Return the step at which the next attempt would resume; None at the beginning."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class ThisHost:
    """This host alone, which emulates all hosts of a cluster; `start` runs an attempt as a child.

    A process per attempt: after a failure, nothing is known of the state of MPI and XLA.
    """

    start: Callable[[Attempt], int]

    @property
    def hosts(self) -> None:
        """None: this host stands for all of the cluster."""
        return

    def run(self, attempt: Attempt) -> tuple[int, EndKind]:
        """Run an attempt to its end, and return its exit code, and how it ended."""
        code = self.start(attempt)
        return code, EndKind.of(code)

    def look_round(self) -> None:
        """Do nothing: this host is there."""

    def newest_step(self, place: Folder) -> int | None:
        """Return the step of the newest intact checkpoint, None where there is none."""
        try:
            return newest_valid(place).step
        except CheckpointError:
            return None
