r"""Match the messages of two ranks: NCCL has no tags, so both ends must agree on the order.

The receiver announces to the sender, over another transport, which tags it waits for (`POSTED`). As
soon as the sender has an array for one of them, it launches its send and announces it (`LAUNCHED`).
The receiver launches its receives in the order of these announcements::

    receiver   POSTED 7  POSTED 5                 receive 5    receive 7
                     \        \                   /            /
    sender    send 5  ├────────┴► launch 5 ─ LAUNCHED 5       /
                      └─────── send 7 ──── launch 7 ── LAUNCHED 7

So both launch in the same order, whatever the order of the calls; messages of one tag keep theirs;
and no kernel occupies the GPU for a message that has not been sent or has no receive buffer.
"""

from collections import Counter, defaultdict, deque
from typing import Generic, TypeVar

MessageT = TypeVar("MessageT")


class Outgoing(Generic[MessageT]):
    """The sender's side: messages are released once their tag is posted.

    >>> outgoing: Outgoing[str] = Outgoing()
    >>> outgoing.offer(7, "early"), outgoing.posted(5), outgoing.posted(7), outgoing.offer(5, "x")
    (None, None, 'early', 'x')
    """

    def __init__(self) -> None:
        self._waiting: defaultdict[int, deque[MessageT]] = defaultdict(deque)
        self._posted: Counter[int] = Counter()

    def offer(self, tag: int, message: MessageT) -> MessageT | None:
        """Add a message; return it if it may be launched now."""
        if self._posted[tag] == 0:
            self._waiting[tag].append(message)
            return None
        self._posted[tag] -= 1
        return message

    def posted(self, tag: int) -> MessageT | None:
        """Record a posted receive; return the message for it if there is one."""
        if self._waiting[tag]:
            return self._waiting[tag].popleft()
        self._posted[tag] += 1
        return None


class Incoming(Generic[MessageT]):
    """The receiver's side: receives of one tag are launched in the order of posting.

    >>> incoming: Incoming[str] = Incoming()
    >>> incoming.post(7, "first"); incoming.post(7, "second"); incoming.launched(7)
    'first'
    """

    def __init__(self) -> None:
        self._posted: defaultdict[int, deque[MessageT]] = defaultdict(deque)

    def post(self, tag: int, message: MessageT) -> None:
        """Add a receive with this tag."""
        self._posted[tag].append(message)

    def launched(self, tag: int) -> MessageT:
        """Return the receive for the message that the sender has launched."""
        assert self._posted[tag], f"a message with tag {tag} was launched without a posted receive"
        return self._posted[tag].popleft()
