"""When fragments take their outer steps: after which inner steps they are sent, and applied.

Fragment p of F is sent after inner steps H (p + 1) / F, H (p + 1) / F + H, and so on, and its sum
is applied `delay` inner steps later (tau), while the islands train on::

    H = 4, F = 2, delay 1      done    1   2   3   4   5   6   7   8
                               send        0       1       0       1   (and all that is not due)
                               apply           0       1       0   1 0

With eager updates the delay is H: a sum is applied where the next one is sent, right before it.

After the last inner step of a run everything arrives: sums under way are applied, and every
fragment is sent once more, so that the last anchor contains all inner steps. A fragment that was
not due then moves to the mean of the islands: another step with momentum, after few inner steps,
would move it too far.

Source: "Streaming DiLoCo", arXiv 2501.18512, algorithm 2. The published offsets and the end of a
run are not stated there; these are ours.
"""

from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple


class OuterAction(Enum):
    """What happens to a fragment after an inner step."""

    SEND = "send"
    """Its outer gradient is computed, and its all-reduce begins."""
    APPLY = "apply"
    """Its sum has arrived: the outer step, and the mixing with the local parameters."""
    AVERAGE = "average"
    """As `APPLY`, but the anchor becomes the mean of the islands."""


class OuterEvent(NamedTuple):
    """An action on a fragment."""

    action: OuterAction
    fragment: int


@dataclass(frozen=True, slots=True, kw_only=True)
class OuterTimetable:
    """The events of a run of `num_steps` inner steps, with an outer step `every` H of them.

    H divides the number of steps, and `check_timetable` accepts the rest; a delay of H is that of
    eager updates.
    """

    every: int
    num_fragments: int
    delay: int
    num_steps: int

    def __post_init__(self) -> None:
        delay = 0 if self.is_eager else self.delay
        check_timetable(every=self.every, num_fragments=self.num_fragments, delay=delay)
        assert self.num_steps % self.every == 0, (self.num_steps, self.every)

    @property
    def is_eager(self) -> bool:
        """Whether a sum is under way until the next one is sent."""
        return self.delay == self.every

    def events(self, done: int) -> tuple[OuterEvent, ...]:
        """Return the events after `done` inner steps, in their order, the same on all ranks.

        >>> table = OuterTimetable(every=4, num_fragments=2, delay=1, num_steps=8)
        >>> [[(a.value, p) for a, p in table.events(done)] for done in (4, 5)]
        [[('send', 1)], [('apply', 1)]]
        >>> [(action.value, p) for action, p in table.events(8)]
        [('send', 0), ('average', 0), ('send', 1), ('apply', 1)]
        """
        numbers = range(self.num_fragments)
        if done == self.num_steps:
            return tuple(event for p in numbers for event in self._last_events(p))
        due = (OuterEvent(OuterAction.APPLY, p) for p in numbers if self._applies(p, done))
        sent = (OuterEvent(OuterAction.SEND, p) for p in numbers if self.is_due(p, done))
        # Without a delay a fragment is applied right after it was sent.
        return tuple([*sent, *due] if self.delay == 0 else [*due, *sent])

    def in_flight(self, done: int) -> tuple[int, ...]:
        """Return the fragments whose sum is under way once the events of `done` are over.

        >>> OuterTimetable(every=4, num_fragments=2, delay=1, num_steps=8).in_flight(4)
        (1,)
        """
        if done in (0, self.num_steps):
            return ()
        since = range(max(1, done - self.delay + 1), done + 1)
        numbers = range(self.num_fragments)
        return tuple(p for p in numbers if any(self.is_due(p, sent) for sent in since))

    def is_in_sync(self, done: int) -> bool:
        """Return whether all local parameters equal the anchor, if nothing of them is kept.

        >>> table = OuterTimetable(every=2, num_fragments=1, delay=0, num_steps=4)
        >>> [table.is_in_sync(done) for done in range(5)]
        [True, False, True, False, True]
        """
        if done in (0, self.num_steps):
            return True
        return self.num_fragments == 1 and self.delay == 0 and done % self.every == 0

    def is_due(self, fragment: int, done: int) -> bool:
        """Return whether a fragment is sent after `done` inner steps, in the middle of a run."""
        offset = self.every * (fragment + 1) // self.num_fragments
        return done >= offset and (done - offset) % self.every == 0

    def _applies(self, fragment: int, done: int) -> bool:
        return done > self.delay and self.is_due(fragment, done - self.delay)

    def _last_events(self, fragment: int) -> tuple[OuterEvent, ...]:
        apply = OuterEvent(OuterAction.APPLY, fragment)
        is_due = self.is_due(fragment, self.num_steps)
        last = apply if is_due else OuterEvent(OuterAction.AVERAGE, fragment)
        # In flight from an earlier step, or due now: applied before the fragment is sent again.
        before = (apply,) if fragment in self.in_flight(self.num_steps - 1) else ()
        return (*before, OuterEvent(OuterAction.SEND, fragment), last)


def check_timetable(*, every: int, num_fragments: int, delay: int) -> None:
    """Check that all fragments are sent within H inner steps, one at a time.

    Raises:
        ValueError: they are not.
    """
    if every % num_fragments:
        raise ValueError(
            f"`fragments` ({num_fragments}) must divide `every` ({every}), since fragments are "
            "sent at equal intervals; change one of them"
        )
    if not 0 <= delay < every // num_fragments:
        raise ValueError(
            f"`delay` ({delay}) must be below `every` / `fragments` ({every // num_fragments}), "
            "since a fragment arrives before the next one is sent; lower it"
        )
