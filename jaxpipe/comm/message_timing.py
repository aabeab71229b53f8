"""When a message was handed to the network, and when it was complete.

A handle of a transport that knows these times has them as `timing`. They outlive the handle, and
refer to no array.
"""

from dataclasses import dataclass
from math import nan
from typing import Any, Protocol, runtime_checkable


@runtime_checkable
class MessageTiming(Protocol):
    """The times of one message on this rank's clock, `time.perf_counter`; NaN until they come.

    Of a send, `started_s` is when its array was computed and handed to the network; of a receive,
    when it was posted.
    """

    @property
    def started_s(self) -> float:
        """When the message was handed over, or the receive posted."""
        ...

    @property
    def over_s(self) -> float:
        """When it was seen to be complete."""
        ...


@dataclass(slots=True)
class Times:
    """The times of a message whose transport keeps no other record of it."""

    started_s: float = nan
    over_s: float = nan


def timing_of(handle: Any) -> MessageTiming | None:
    """Return the times of a message by the handle of its send or receive; None if it has none."""
    return getattr(handle, "timing", None)
