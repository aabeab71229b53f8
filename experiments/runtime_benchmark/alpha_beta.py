"""What an all-reduce takes by latency and bandwidth alone: its own steps, on the links' arithmetic.

Ranks compute nothing and lose nothing: a send is posted as soon as the steps before it are done, a
message arrives when its link says, and a step that takes it in is done then. Same steps, chunks and
links as those that are emulated, so what is measured can only be slower.
"""

from collections import Counter, deque
from collections.abc import Mapping, Sequence
from functools import partial

from jaxpipe.collective import Act, AllReduceKind, Step, SyncTree, ranks, steps_of
from jaxpipe.comm.shaped import links_of_rank
from jaxpipe.network import EventQueue, Link
from topo import Cluster

_ITEM_BYTES = 4
_CHUNK_BYTES = 2**20


def alpha_beta_s(
    algorithm: AllReduceKind, tree: SyncTree, cluster: Cluster, *, num_bytes: int, scale: float
) -> float:
    """Return the seconds until the last rank has the sum of float32 values and has sent its own.

    >>> import topo
    >>> cluster = topo.load("homogeneous:hosts=2,delay_ms=1000,bandwidth_gbps=8e-9")
    >>> alpha_beta_s(AllReduceKind.SHARDED, (0, 1), cluster, num_bytes=8, scale=1.0)
    9.0
    """
    members = ranks(tree)
    devices = tuple(range(len(members)))
    message_size = _CHUNK_BYTES // _ITEM_BYTES
    size = num_bytes // _ITEM_BYTES
    queue, run = EventQueue(), {}
    for rank in members:
        run[rank] = _Rank(
            rank,
            steps_of(algorithm, tree, rank, size=size, message_size=message_size),
            links_of_rank(queue, cluster, devices, rank=rank, scale=scale),
            peers=run,
        )
    for each in run.values():
        queue.at(0.0, each.advance)
    queue.run()
    assert not any(each.steps for each in run.values()), "the ranks wait for each other"
    return queue.now_s


class _Rank:
    """One rank: the steps that it has still to do, and the messages that have arrived for it."""

    def __init__(
        self,
        rank: int,
        steps: Sequence[Step],
        links: Sequence[Link],
        *,
        peers: Mapping[int, "_Rank"],
    ):
        self.rank, self.steps, self.links, self.peers = rank, deque(steps), links, peers
        self.arrived = Counter[int]()

    def advance(self) -> None:
        """Do all steps up to the first whose message has not arrived."""
        while self.steps:
            step = self.steps[0]
            if step.act is Act.SEND:
                deliver = partial(self.peers[step.peer].deliver, self.rank)
                self.links[step.peer].send(step.part.size * _ITEM_BYTES, deliver)
            elif step.act is not Act.SETTLE:
                if not self.arrived[step.peer]:
                    return
                self.arrived[step.peer] -= 1
            self.steps.popleft()

    def deliver(self, source: int) -> None:
        """Take a message that arrives from the rank `source`."""
        self.arrived[source] += 1
        self.advance()
