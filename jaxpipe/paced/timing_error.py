"""Timing errors: how late events happen, which tells whether the machine keeps up."""

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class TimingError:
    """The lateness of `num_events` events: its sum, and the largest."""

    num_events: int = 0
    total_s: float = 0.0
    largest_s: float = 0.0

    @property
    def mean_s(self) -> float:
        """The mean lateness."""
        return self.total_s / max(1, self.num_events)


NEVER_LATE = TimingError()
"""The lateness of no events."""


def added(parts: Iterable[TimingError]) -> TimingError:
    """Return the lateness of all events together.

    >>> one = TimingError(num_events=1, total_s=0.5, largest_s=0.5)
    >>> added([one, TimingError(num_events=4), one]).mean_s
    0.16666666666666666
    """
    addends = tuple(parts)
    return TimingError(
        num_events=sum(part.num_events for part in addends),
        total_s=sum(part.total_s for part in addends),
        largest_s=max((part.largest_s for part in addends), default=0.0),
    )


class TimingErrors:
    """Collects the lateness of events of any thread of a rank."""

    # No lock: a count that is lost between two threads does no harm, and a lock would add delays.
    __slots__ = ("_largest_s", "_num_events", "_total_s")

    def __init__(self) -> None:
        self._num_events = 0
        self._total_s = self._largest_s = 0.0

    def add(self, late_s: float) -> None:
        """Add an event and its lateness; an early one, below 0, counts as on time."""
        self._num_events += 1
        if late_s > 0:
            self._total_s += late_s
            self._largest_s = max(self._largest_s, late_s)

    def summary(self) -> TimingError:
        """Return the lateness of all events so far."""
        return TimingError(
            num_events=self._num_events,
            total_s=self._total_s,
            largest_s=self._largest_s,
        )
