"""Messages of paced ranks that block: each moves only while both of its ranks wait.

The rendezvous is the simulator's; here real ranks report when they wait, and compute otherwise::

    sender      POSTED ── waits ──┬─ message ─┬─ SENT ─► next compute
    receiver        WAITS ────────┴───────────┴─ ARRIVES ─► next compute
"""

from collections import Counter
from typing import NamedTuple

from jaxpipe.paced.protocol import Packet
from jaxpipe.simulate.engine.rendezvous import Move, Rendezvous


class _Message(NamedTuple):
    source: int
    to: int
    tag: int


class BlockedMessages:
    """The messages that wait for their ranks, in the time of the switch."""

    def __init__(self, num_ranks: int) -> None:
        self._rendezvous = Rendezvous(num_ranks)
        self._awaited: dict[int, _Message] = {}
        # A rank that waits for one message takes part in others, which it awaits only later.
        self._arrived: Counter[_Message] = Counter()
        for rank in range(num_ranks):
            self._rendezvous.begin(rank)

    def wait(self, packet: Packet) -> None:
        """Let the rank `packet.to` wait for a message, unless it has arrived."""
        message = _message(packet)
        if self._arrived[message]:
            self._arrived[message] -= 1
            return
        self._awaited[message.to] = message
        self._rendezvous.end(message.to)
        self._rendezvous.serve(message.to)

    def post(self, packet: Packet, move: Move) -> None:
        """Let the rank `packet.source` wait until its message has arrived, moved by `move`."""
        message = _message(packet)

        def done() -> None:
            # The switch has reported the arrival to both ranks: they compute from now on.
            self._rendezvous.begin(message.source)
            if self._awaited.get(message.to) == message:
                del self._awaited[message.to]
                self._rendezvous.begin(message.to)
            else:
                self._arrived[message] += 1

        self._rendezvous.end(message.source)
        self._rendezvous.offer(message.source, message.to, move, done)


def _message(packet: Packet) -> _Message:
    return _Message(packet.source, packet.to, packet.tag)
