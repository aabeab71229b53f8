"""A port takes one message after the other, while others are still on their way."""

from collections.abc import Iterable


def served_s(messages: Iterable[tuple[float, float]], *, start_s: float = 0.0) -> float:
    """Return when a port has taken all messages, pairs of first arrival and seconds on the wire.

    Sending is receiving with time reversed: it takes as long.

    >>> served_s([(5.0, 1.0), (1.0, 2.0), (2.0, 1.0)])
    6.0
    """
    end_s = start_s
    for latency_s, wire_s in sorted(messages):
        end_s = max(end_s, float(latency_s)) + wire_s
    return end_s
