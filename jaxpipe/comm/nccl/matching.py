r"""Which message goes next between two ranks: NCCL knows no tags, so both sides have to agree.

The receiver tells the sender, over another transport, which tags it waits for (`POSTED`); as soon
as the sender has an array for one of them it launches its send and says so (`LAUNCHED`); and the
receiver launches its receives in the order in which it is told::

    receiver   POSTED 7  POSTED 5                 receive 5    receive 7
                     \        \                   /            /
    sender    send 5  ├────────┴► launch 5 ─ LAUNCHED 5       /
                      └─────── send 7 ──── launch 7 ── LAUNCHED 7

So both launch in one order, whatever the order of the calls; messages of one tag keep theirs; and
no kernel occupies the GPU for a message that nobody has sent or nobody has room for.
"""

from collections import Counter, defaultdict, deque
from typing import Generic, TypeVar

MessageT = TypeVar("MessageT")


class Outgoing(Generic[MessageT]):
    """The sender's half: messages are let go once their tag is posted.

    >>> outgoing: Outgoing[str] = Outgoing()
    >>> outgoing.offer(7, "early"), outgoing.posted(5), outgoing.posted(7), outgoing.offer(5, "x")
    (None, None, 'early', 'x')
    """

    def __init__(self) -> None:
        self._waiting: defaultdict[int, deque[MessageT]] = defaultdict(deque)
        self._posted: Counter[int] = Counter()

    def offer(self, tag: int, message: MessageT) -> MessageT | None:
        """Take on a message; return it if it may be launched now."""
        if self._posted[tag] == 0:
            self._waiting[tag].append(message)
            return None
        self._posted[tag] -= 1
        return message

    def posted(self, tag: int) -> MessageT | None:
        """Note that the receiver has room for one more; return the message that goes there."""
        if self._waiting[tag]:
            return self._waiting[tag].popleft()
        self._posted[tag] += 1
        return None


class Incoming(Generic[MessageT]):
    """The receiver's half: what was posted first under a tag is launched first.

    >>> incoming: Incoming[str] = Incoming()
    >>> incoming.post(7, "first"); incoming.post(7, "second"); incoming.launched(7)
    'first'
    """

    def __init__(self) -> None:
        self._posted: defaultdict[int, deque[MessageT]] = defaultdict(deque)

    def post(self, tag: int, message: MessageT) -> None:
        """Wait for one more message with this tag."""
        self._posted[tag].append(message)

    def launched(self, tag: int) -> MessageT:
        """Return what the message goes to that the sender has launched."""
        assert self._posted[tag], f"nothing is posted with tag {tag}, yet it was launched"
        return self._posted[tag].popleft()
