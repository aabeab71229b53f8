"""Virtual clock of one rank: the emulated time of each of its threads.

A stage function is a sleep. On a machine that has 64 ranks on two cores every sleep ends a little
late, and a thousand sleeps one after the other would end a thousand times a little late. So a sleep
lasts until a deadline that counts from the deadline before it, not from when that sleep ended::

    due       ├─ forward 0 ─┼─ forward 1 ─┼─ forward 2 ─┤
    awake     ├─ forward 0 ───┼─ forward 1 ─┼─ forward 2 ─┤
                            late          late

A thread that waits for a message is due when the message arrives, as the network says; what it
sends then leaves when the thread was due. So time is that of the emulated ranks, not that of the
machine that runs them: the time that Python takes between two instructions is no part of it. The
machine has to keep up: the lateness of all sleeps is recorded and reported with every result.
"""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass

from jaxpipe.paced.timing_error import TimingError, TimingErrors


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeBase:
    """The origin of emulated time on `time.perf_counter`, and the real seconds of each second."""

    origin_s: float
    stretch: float

    def real(self, due_s: float) -> float:
        """Return the emulated time `due_s` on `time.perf_counter`."""
        return self.origin_s + self.stretch * due_s

    def now(self) -> float:
        """Return the emulated time that corresponds to the real clock."""
        return (time.perf_counter() - self.origin_s) / self.stretch


class VirtualClock:
    """The emulated time of each thread of a rank, in seconds since the start of the time base.

    A clock can be shared before it has started; sleeping needs a started one.

    >>> clock = VirtualClock()
    >>> clock.start(TimeBase(origin_s=time.perf_counter(), stretch=0.001))
    >>> clock.sleep(2.0)
    >>> clock.reach(1.5)
    >>> clock.now()
    2.0
    """

    def __init__(self) -> None:
        self._base: TimeBase | None = None
        # Every thread of a rank is due at a time of its own; one that runs in a copy of another's
        # context starts at the time of that one.
        self._due_s = ContextVar("due_s", default=0.0)
        self._late = TimingErrors()

    @property
    def base(self) -> TimeBase:
        """The time base with which the clock has started."""
        assert self._base is not None, "the clock has not started"
        return self._base

    def start(self, base: TimeBase) -> None:
        """Start emulated time."""
        self._base = base

    @property
    def lateness(self) -> TimingError:
        """The lateness of all sleeps so far."""
        return self._late.summary()

    def now(self) -> float:
        """Return when the calling thread is due: the end of its last sleep or wait."""
        return self._due_s.get()

    def reach(self, due_s: float) -> None:
        """Advance the calling thread to `due_s` if it is due earlier; it has waited already."""
        self._due_s.set(max(self.now(), due_s))

    @contextmanager
    def at(self, due_s: float) -> Iterator[None]:
        """Let the calling thread act at `due_s`, for an event of then, and restore its own time."""
        before_s = self._due_s.set(due_s)
        try:
            yield
        finally:
            self._due_s.reset(before_s)

    def sleep(self, seconds: float) -> None:
        """Sleep for some seconds from when the calling thread is due."""
        due_s = self.now() + seconds
        early_s = self.base.real(due_s) - time.perf_counter()
        if early_s > 0:
            time.sleep(early_s)
        self._late.add(time.perf_counter() - self.base.real(due_s))
        self._due_s.set(due_s)
