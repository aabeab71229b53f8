"""Rendezvous: messages that move only while both of their ranks do nothing else.

::

    sender      forward │ waits │ message │ ...
    receiver    backward        │ message │ backward

A send is complete when its message has arrived. A rank that waits, for a message of its own or for
another's, takes part in any message that is offered to it, the earliest offer first, so two ranks
that send to each other do not deadlock: their messages follow each other.
"""

from collections import deque
from collections.abc import Callable
from typing import NamedTuple

Move = Callable[[Callable[[], None]], None]
"""Moves a message, and calls back on its arrival."""


class _Offer(NamedTuple):
    source: int
    destination: int
    move: Move
    done: Callable[[], None]


class Rendezvous:
    """The messages that wait for their ranks, and the ranks that are busy."""

    def __init__(self, num_ranks: int) -> None:
        # Counts: a rank that leaves a barrier may have to compute while another's message comes in.
        self._busy = [0] * num_ranks
        self._offers: list[deque[_Offer]] = [deque() for _ in range(num_ranks)]

    def begin(self, rank: int) -> None:
        """Let a rank compute: no message moves to it or from it."""
        self._busy[rank] += 1

    def end(self, rank: int) -> None:
        """Let a rank end its computation; `serve` follows once it waits again."""
        self._busy[rank] -= 1

    def offer(self, source: int, destination: int, move: Move, done: Callable[[], None]) -> None:
        """Offer a message; `done` is called when it has arrived and both ranks are free again."""
        offer = _Offer(source, destination, move, done)
        self._offers[source].append(offer)
        self._offers[destination].append(offer)
        self.serve(source)

    def serve(self, rank: int) -> None:
        """Begin the earliest message of a rank whose other rank is free too."""
        if self._busy[rank]:
            return
        for offer in self._offers[rank]:
            if not self._busy[offer.source] and not self._busy[offer.destination]:
                self._begin(offer)
                return

    def _begin(self, offer: _Offer) -> None:
        for rank in offer[:2]:
            self._busy[rank] += 1
            self._offers[rank].remove(offer)

        def arrived() -> None:
            for rank in offer[:2]:
                self._busy[rank] -= 1
            offer.done()
            # Only now: `done` may have set either rank to work.
            for rank in offer[:2]:
                self.serve(rank)

        offer.move(arrived)
