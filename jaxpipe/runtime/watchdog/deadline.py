"""How long a rank may take over one thing, learned from how long it has taken so far."""

from collections import deque
from collections.abc import Hashable

_FEW = 10
_WINDOW = 512
_TIMES = 5.0


class Deadlines:
    """Durations by kind, and the limit that follows: five times their 99th percentile.

    It is never below `least_s`; and `unlearned_s` until a kind was seen ten times. The newest 512
    durations of a kind count.

    >>> deadlines = Deadlines(least_s=2.5, unlearned_s=120.0)
    >>> deadlines.limit_s("receive")
    120.0
    >>> for _ in range(99):
    ...     deadlines.add("receive", 0.01)
    >>> deadlines.limit_s("receive")
    2.5
    >>> deadlines.add("receive", 4.0)
    >>> deadlines.limit_s("receive")
    20.0
    """

    def __init__(self, *, least_s: float, unlearned_s: float) -> None:
        self._least_s = least_s
        self._unlearned_s = unlearned_s
        self._durations: dict[Hashable, deque[float]] = {}

    def add(self, kind: Hashable, duration_s: float) -> None:
        """Learn from something that is over."""
        self._durations.setdefault(kind, deque(maxlen=_WINDOW)).append(duration_s)

    def limit_s(self, kind: Hashable) -> float:
        """Return how long something of this kind may take; any thread may ask."""
        durations = sorted(self._durations.get(kind, deque()).copy())
        if len(durations) < _FEW:
            return self._unlearned_s
        percentile = durations[int(0.99 * len(durations))]
        return max(self._least_s, min(_TIMES * percentile, self._unlearned_s))
