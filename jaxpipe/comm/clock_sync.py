r"""Clock offset between this rank and rank 0, so that all traces share one time axis.

Rank 0 answers each other rank in turn. A rank reads its clock, sends a request, receives the time
of rank 0, and reads its clock again; the answer was given in between, most likely in the middle::

    rank 0  ───────── s ─────────      offset = s - (start + end) / 2
                    /   \
    rank r  ── start ─── end ────      error <= (end - start) / 2

The shortest of all rounds is used: it has the smallest error bound.

Source: Cristian, "Probabilistic clock synchronization", Distributed Computing 3, 1989.
"""

from collections.abc import Callable

import jax
import numpy as np

from jaxpipe.comm.tags import CLOCK_TAG
from jaxpipe.comm.transport import Transport

_PING = jax.ShapeDtypeStruct((0,), np.dtype(np.float64))
_TIME = jax.ShapeDtypeStruct((1,), np.dtype(np.float64))


def clock_offset(
    transport: Transport, *, rounds: int, timeout_s: float, clock: Callable[[], float]
) -> float:
    """Return the seconds to add to this rank's `clock` to get that of rank 0; all ranks call this.

    The error is at most half of the shortest round trip, and small where both ways take the same
    time. Each message may take `timeout_s`; a rank's first one lasts until the ranks before it have
    been answered, so the time allowed must cover `rounds * num_ranks` round trips.

    Raises:
        DeadlineError: a message took longer than `timeout_s`.
        TransportError: a message could not be moved, or the job was aborted.
    """
    assert rounds > 0, rounds
    if transport.rank == 0:
        # One rank at a time: answers to two at once would delay each other.
        for rank in range(1, transport.num_ranks):
            for _ in range(rounds):
                _answer(transport, rank, timeout_s=timeout_s, clock=clock)
        return 0.0
    # Tuples compare by round trip first: the shortest has the smallest error.
    _, offset_s = min(_ask(transport, timeout_s=timeout_s, clock=clock) for _ in range(rounds))
    return offset_s


def _answer(
    transport: Transport, rank: int, *, timeout_s: float, clock: Callable[[], float]
) -> None:
    transport.receive(_PING, source=rank, tag=CLOCK_TAG).wait(timeout_s=timeout_s)
    sending = transport.send(np.array([clock()]), to=rank, tag=CLOCK_TAG)
    sending.wait(timeout_s=timeout_s)


def _ask(
    transport: Transport, *, timeout_s: float, clock: Callable[[], float]
) -> tuple[float, float]:
    """Return the round trip and the offset, both in seconds."""
    # Posted before the clock is read: posting must not count as a part of the round trip.
    receiving = transport.receive(_TIME, source=0, tag=CLOCK_TAG)
    start_s = clock()
    sending = transport.send(np.zeros(0), to=0, tag=CLOCK_TAG)
    answer_s = float(receiving.wait(timeout_s=timeout_s)[0])
    end_s = clock()
    sending.wait(timeout_s=timeout_s)
    return end_s - start_s, answer_s - (start_s + end_s) / 2
