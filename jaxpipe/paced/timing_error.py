"""How late what was due has happened: whether the machine keeps up with what it emulates."""

from collections.abc import Iterable
from dataclasses import dataclass

_NOTED_S = 1e-3


@dataclass(frozen=True, slots=True, kw_only=True)
class TimingError:
    """Of `num_all` events `num_late` were late by a millisecond or more; real seconds."""

    num_all: int = 0
    num_late: int = 0
    total_s: float = 0.0
    largest_s: float = 0.0

    @property
    def mean_s(self) -> float:
        """How late they were on average."""
        return self.total_s / max(1, self.num_all)

    @property
    def late_fraction(self) -> float:
        """The part of all that were late."""
        return self.num_late / max(1, self.num_all)


NEVER_LATE = TimingError()
"""Of no event."""


def added(parts: Iterable[TimingError]) -> TimingError:
    """Return the lateness of all events together.

    >>> one = TimingError(num_all=1, num_late=1, total_s=0.5, largest_s=0.5)
    >>> added([one, TimingError(num_all=4), one]).late_fraction
    0.3333333333333333
    """
    each = tuple(parts)
    return TimingError(
        num_all=sum(part.num_all for part in each),
        num_late=sum(part.num_late for part in each),
        total_s=sum(part.total_s for part in each),
        largest_s=max((part.largest_s for part in each), default=0.0),
    )


class TimingErrors:
    """Collects how late events are, from any thread of a rank: a lost count does no harm."""

    __slots__ = ("_largest_s", "_num_all", "_num_late", "_total_s")

    def __init__(self) -> None:
        self._num_all = self._num_late = 0
        self._total_s = self._largest_s = 0.0

    def add(self, late_s: float) -> None:
        """Add an event that was so late, or early, which is not late at all."""
        self._num_all += 1
        if late_s > 0:
            self._num_late += late_s >= _NOTED_S
            self._total_s += late_s
            self._largest_s = max(self._largest_s, late_s)

    def summary(self) -> TimingError:
        """Return what has been collected."""
        return TimingError(
            num_all=self._num_all,
            num_late=self._num_late,
            total_s=self._total_s,
            largest_s=self._largest_s,
        )
