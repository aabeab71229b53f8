"""One progress line for everything that takes long: a search, a compilation, the steps of a run.

::

    terminal   ⠹ training: step 120 of 600 ━━━━━╸━━━━━━━━━━━━━━━━━━━ 0:00:41 about 3 min left
    log        compiling the stages: 5 of 11, 12 s, about 14 s left       one line in ten seconds

The line goes to standard error, so that output which is piped or parsed has none of it. On a
terminal, what others print appears above it.
"""

import os
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from threading import Event, Lock, Thread
from typing import Final, Protocol, TextIO

from rich.console import Console
from rich.progress import BarColumn, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.progress import Progress as Bar

from jaxpipe.errors import printable
from jaxpipe.run.terminal.console import errors
from jaxpipe.runtime.process.tee import write_all

_LOG_EVERY_S: Final = 10.0
_REDRAW_S: Final = 0.2
_REMEMBERED: Final = 30


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """How far an activity is: `done` of `total` units, of which there may be no number.

    An activity that `is_logged` has lines of its own in a log, and needs none of a progress line.
    """

    what: str
    detail: str = ""
    done: float = 0.0
    total: float | None = None
    unit: str = ""
    is_logged: bool = False

    @property
    def text(self) -> str:
        """The activity, and how far it is.

        >>> Progress(what="training", done=3, total=600, unit="step").text
        'training: step 3 of 600'
        >>> Progress(what="searching", detail="12 plans", done=4.0, total=30.0, unit="s").text
        'searching: 12 plans'
        """
        parts = [self.detail] if self.detail else []
        if self.total is not None and self.unit not in (SECONDS, WORK):
            unit = f"{self.unit} " if self.unit else ""
            parts = [f"{unit}{self.done:,.0f} of {self.total:,.0f}", *parts]
        return f"{self.what}: {', '.join(parts)}" if parts else self.what


SECONDS: Final = "s"
"""The unit of an activity that ends at a time, whatever it has done until then."""

WORK: Final = "work"
"""The unit of an activity whose parts take unlike times; its detail says how many are done."""


class Pace:
    """The seconds that are left, from the mean pace of the latest thirty updates.

    >>> pace = Pace()
    >>> for step in range(4):
    ...     pace.update(step, at_s=2.0 * step)
    >>> pace.left_s(10)
    14.0
    """

    def __init__(self) -> None:
        self._seen: deque[tuple[float, float]] = deque(maxlen=_REMEMBERED + 1)

    def update(self, done: float, *, at_s: float) -> None:
        """Note how much was done at a time; a smaller amount than before restarts the estimate."""
        if self._seen and done < self._seen[-1][0]:
            self._seen.clear()
        if not self._seen or done > self._seen[-1][0]:
            self._seen.append((done, at_s))

    def left_s(self, total: float, *, now_s: float | None = None) -> float | None:
        """Return the seconds until `total` is done; None before two updates.

        `now_s` is the time, by default that of the latest update. None as well once the whole
        estimate has passed without an update: it was wrong, and there is no better one.
        """
        if len(self._seen) < 2:
            return None
        updates = list(self._seen)
        # The first interval contains what only a beginning does, for example an allocation.
        first = updates[1] if len(updates) > 3 else updates[0]
        last = updates[-1]
        left_s = (total - last[0]) * (last[1] - first[1]) / (last[0] - first[0])
        if now_s is None or total == last[0]:
            return left_s
        left_s -= now_s - last[1]
        return left_s if left_s > 0 else None


def duration(seconds: float) -> str:
    """Return seconds as people say them.

    >>> [duration(each) for each in (0.4, 99, 640, 9000)]
    ['0 s', '99 s', '11 min', '2.5 h']
    """
    if seconds < 100:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


class Display(Protocol):
    """Shows one activity at a time."""

    def update(self, progress: Progress) -> None:
        """Show how far an activity is."""

    def tick(self) -> None:
        """Show that time passes, between updates."""

    def write(self, descriptor: int, piece: bytes) -> None:
        """Write output of others to standard output, 1, or standard error, 2."""

    def close(self) -> None:
        """Remove the line."""


@contextmanager
def showing_progress(what: str = "", *, ticks: bool = True) -> Iterator[Display]:
    """Show progress while the body runs, on a terminal or in a log.

    Without `ticks` no thread is started, as for a process that is going to fork: then the body
    calls `tick`.
    """
    display: Display
    display = TerminalLine(errors, ticks=ticks) if errors.is_terminal else LogLines(sys.stderr)
    stopped = Event()
    thread = Thread(target=_tick, args=(display, stopped), name="progress", daemon=True)
    if what:
        display.update(Progress(what=what))
    if ticks and not errors.is_terminal:
        thread.start()
    try:
        yield display
    finally:
        stopped.set()
        if thread.is_alive():
            thread.join(_LOG_EVERY_S)
        display.close()


def _tick(display: Display, stopped: Event) -> None:
    while not stopped.wait(_LOG_EVERY_S / 4):
        display.tick()


class LogLines:
    """Prints a line in ten seconds at most, and none of what takes less."""

    def __init__(self, file: TextIO, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._file, self._clock = file, clock
        self._pace = Pace()
        self._progress: Progress | None = None
        self._began_s = self._printed_s = clock()
        self._lock = Lock()

    def update(self, progress: Progress) -> None:
        """Note how far an activity is, and print it if it is time."""
        with self._lock:
            if self._progress is None or progress.what != self._progress.what:
                self._pace = Pace()
                # Also of an activity that follows another, the first ten seconds are silent.
                self._began_s = self._printed_s = self._clock()
            self._progress = progress
            self._pace.update(progress.done, at_s=self._clock())
        self.tick()

    def tick(self) -> None:
        """Print the activity if it is time."""
        now_s = self._clock()
        with self._lock:
            progress = self._progress
            if progress is None or progress.is_logged or now_s - self._printed_s < _LOG_EVERY_S:
                return
            self._printed_s = now_s
            left = left_text(progress, self._pace, now_s=now_s)
            ends = [f"{duration(now_s - self._began_s)}", *([left] if left else [])]
            with suppress(OSError, ValueError):  # closed by its reader
                self._file.write(f"{printable(progress.text)}, {', '.join(ends)}\n")
                self._file.flush()

    def write(self, descriptor: int, piece: bytes) -> None:
        """Write output of others: lines of a log do not disturb each other."""
        write_all(descriptor, piece)

    def close(self) -> None:
        """Do nothing: printed lines stay."""


class TerminalLine:
    """Shows one line that changes in place, and leaves nothing when it is closed."""

    def __init__(
        self, console: Console, *, ticks: bool, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._clock = clock
        self._pace = Pace()
        self._what = ""
        self._rest = {1: b"", 2: b""}
        self._drawn_s = 0.0
        self._bar = Bar(
            SpinnerColumn(),
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=24),
            TimeElapsedColumn(),
            TextColumn("{task.fields[left]}", markup=False),
            console=console,
            transient=True,
            auto_refresh=ticks,
            # What this process prints appears above the line; what it writes to a file does not.
            redirect_stdout=sys.stdout.isatty(),
            redirect_stderr=sys.stderr.isatty(),
        )
        self._task = self._bar.add_task("", total=None, visible=False, left="")
        self._bar.start()

    def update(self, progress: Progress) -> None:
        """Show how far an activity is."""
        if progress.what != self._what:
            self._pace, self._what = Pace(), progress.what
            # A new task: one that had a total keeps it, and its seconds.
            self._bar.remove_task(self._task)
            self._task = self._bar.add_task(progress.text, total=progress.total, left="")
        self._pace.update(progress.done, at_s=self._clock())
        self._bar.update(
            self._task,
            description=progress.text,
            completed=progress.done,
            total=progress.total,
            left=left_text(progress, self._pace, now_s=self._clock()),
            visible=True,
        )

    def tick(self) -> None:
        """Draw the line again, five times a second at most."""
        now_s = self._clock()
        if not self._bar.live.auto_refresh and now_s - self._drawn_s > _REDRAW_S:
            self._drawn_s = now_s
            self._bar.refresh()

    def write(self, descriptor: int, piece: bytes) -> None:
        """Write whole lines above the progress line; what is no terminal gets them as they are."""
        if not os.isatty(descriptor):
            write_all(descriptor, piece)
            return
        lines, newline, rest = (self._rest[descriptor] + piece).rpartition(b"\n")
        self._rest[descriptor] = rest
        if newline:
            self._print(lines)

    def close(self) -> None:
        """Remove the line, and print what has no end."""
        self._bar.stop()
        for rest in filter(None, self._rest.values()):
            self._print(rest)

    def _print(self, text: bytes) -> None:
        shown = printable(text.decode(errors="replace"))
        self._bar.console.print(shown, markup=False, highlight=False, soft_wrap=True)


def left_text(progress: Progress, pace: Pace, *, now_s: float | None = None) -> str:
    """Return the estimate of the time that is left, at a time; nothing where there is none."""
    if progress.total is None:
        return ""
    if progress.unit == SECONDS:
        left_s: float | None = progress.total - progress.done
    else:
        left_s = pace.left_s(progress.total, now_s=now_s)
    return "" if left_s is None else f"about {duration(max(0.0, left_s))} left"


class SearchProgress:
    """Shows what precedes a search, and then the search, which ends after a time."""

    def __init__(self, display: Display, what: str, *, of: str, budget_s: float) -> None:
        self._display, self._what, self._of, self._budget_s = display, what, of, budget_s
        self._begin_s = time.monotonic()

    def measuring(self, detail: str) -> None:
        """Show what is measured next; the time of the search begins again."""
        self._display.update(measuring(detail))
        self._begin_s = time.monotonic()

    def tried(self, number: int) -> None:
        """Show the number of tries so far."""
        done_s = min(time.monotonic() - self._begin_s, self._budget_s)
        self._display.update(
            Progress(
                what=self._what,
                detail=f"{number:,} {self._of}",
                done=done_s,
                total=self._budget_s,
                unit=SECONDS,
            )
        )


def measuring(detail: str) -> Progress:
    """Return the activity of measuring what a plan costs on this machine.

    >>> measuring("1 of 7: compiling, microbatch 1").text
    'measuring on this machine, once: 1 of 7: compiling, microbatch 1'
    """
    return Progress(what="measuring on this machine, once", detail=detail)


@contextmanager
def search_progress(what: str, *, of: str, budget_s: float) -> Iterator[SearchProgress]:
    """Show a search with a time limit; yields what takes its activities and number of tries."""
    with showing_progress(what) as display:
        yield SearchProgress(display, what, of=of, budget_s=budget_s)
