"""How long each kind of instruction may take, learned from how long it has taken."""

from collections import deque
from collections.abc import Hashable

_LEARNED_FROM = 10
_WINDOW = 512
_DEADLINE_FACTOR = 5.0


class Deadlines:
    """Deadlines by kind of instruction, learned: five times the 99th percentile of its durations.

    At least `least_s`, and `unlearned_s` until a kind has been seen ten times. The latest 512
    durations of a kind count. What is outside of the program, of no kind, has `phase_s`, by default
    as long as `unlearned_s`.

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

    def __init__(self, *, least_s: float, unlearned_s: float, phase_s: float | None = None) -> None:
        self._least_s = least_s
        self._phase_s = unlearned_s if phase_s is None else phase_s
        self._unlearned_s = unlearned_s
        self._durations: dict[Hashable, deque[float]] = {}

    def add(self, kind: Hashable, duration_s: float) -> None:
        """Learn from the duration of an instruction that has ended."""
        self._durations.setdefault(kind, deque(maxlen=_WINDOW)).append(duration_s)

    def limit_s(self, kind: Hashable) -> float:
        """Return the deadline of a kind; any thread may call this."""
        if kind is None:
            return self._phase_s
        # A copy: the thread that trains may append meanwhile.
        durations = sorted(self._durations.get(kind, deque()).copy())
        if len(durations) < _LEARNED_FROM:
            return self._unlearned_s
        percentile = durations[int(0.99 * len(durations))]
        return max(self._least_s, min(_DEADLINE_FACTOR * percentile, self._unlearned_s))
