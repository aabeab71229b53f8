"""The protocol of everything that is told of steps."""

from collections.abc import Mapping
from typing import Protocol, runtime_checkable


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
