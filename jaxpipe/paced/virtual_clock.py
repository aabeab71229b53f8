"""The pace of one rank: what lasts how long, and when each of its threads is due.

A stage function is a wait. On a machine that has 64 ranks on two cores every wait ends a little
late, and a thousand waits one after the other would end a thousand times a little late. So a wait
lasts until a deadline that counts from when the one before it was due, not from when it ended::

    due       ├─ forward 0 ─┼─ forward 1 ─┼─ forward 2 ─┤
    awake     ├─ forward 0 ───┼─ forward 1 ─┼─ forward 2 ─┤
                            late          late

A thread that waits for a message is due when the message arrives, as the network says; what it
sends then leaves when the thread was due. So time is that of the emulated ranks, not that of the
machine that plays them: what Python takes between two instructions is not part of it. The machine
has to keep up: how late waits end is kept, and told with every result.
"""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from threading import local

from jaxpipe.paced.timing_error import TimingError, TimingErrors


@dataclass(frozen=True, slots=True, kw_only=True)
class Beat:
    """When emulated time began, on `time.perf_counter`, and how many seconds each second takes."""

    origin_s: float
    stretch: float

    def real(self, due_s: float) -> float:
        """Return when it is `due_s`, on `time.perf_counter`."""
        return self.origin_s + self.stretch * due_s

    def now(self) -> float:
        """Return the emulated time that it really is."""
        return (time.perf_counter() - self.origin_s) / self.stretch


class Pace:
    """The emulated time of each thread of one rank, in seconds since the `beat` began.

    It is there before the beat is known: nothing lasts until then.

    >>> pace = Pace()
    >>> pace.begin(Beat(origin_s=time.perf_counter(), stretch=0.001))
    >>> pace.last(2.0)
    >>> pace.reach(1.5)
    >>> pace.now()
    2.0
    """

    def __init__(self) -> None:
        self._beat: Beat | None = None
        self._thread = local()
        self._late = TimingErrors()

    @property
    def beat(self) -> Beat:
        """When emulated time began."""
        assert self._beat is not None, "time has not begun"
        return self._beat

    def begin(self, beat: Beat) -> None:
        """Let time begin with a beat."""
        self._beat = beat

    @property
    def lateness(self) -> TimingError:
        """How late waits have ended so far."""
        return self._late.summary()

    def now(self) -> float:
        """Return when the calling thread is due: what it has waited for has lasted until then."""
        return getattr(self._thread, "due_s", 0.0)

    def reach(self, due_s: float) -> None:
        """Let the calling thread be due no sooner than that; it has waited already."""
        self._thread.due_s = max(self.now(), due_s)

    @contextmanager
    def at(self, due_s: float) -> Iterator[None]:
        """Let the calling thread do something on behalf of what was due then, whatever it is at."""
        before_s, self._thread.due_s = self.now(), due_s
        try:
            yield
        finally:
            self._thread.due_s = before_s

    def last(self, seconds: float) -> None:
        """Wait for some seconds, counted from when the calling thread is due."""
        due_s = self.now() + seconds
        early_s = self.beat.real(due_s) - time.perf_counter()
        if early_s > 0:
            time.sleep(early_s)
        self._late.add(time.perf_counter() - self.beat.real(due_s))
        self._thread.due_s = due_s
