"""What an all-reduce takes by latency and bandwidth alone: its own steps, on the links' arithmetic.

Ranks compute nothing and lose nothing: a send is posted as soon as the steps before it are done, a
message arrives when its link says, and a step that takes it in is done then. Same steps, chunks and
links as those that are emulated, so what is measured can only be slower.
"""

from collections import deque
from collections.abc import Sequence

from jaxpipe.collective import Act, AllReduceKind, Step, SyncTree, ranks, steps_of
from jaxpipe.comm.shaped import EmulatedLinks
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
    run = [
        _Rank(
            rank,
            steps_of(algorithm, tree, rank, size=size, message_size=message_size),
            EmulatedLinks(cluster, devices, rank=rank, scale=scale),
        )
        for rank in members
    ]
    arrivals: dict[tuple[int, int], deque[float]] = {
        (a, b): deque() for a in members for b in members
    }
    while any(each.steps for each in run):
        advanced = [each.advance(arrivals) for each in run]
        assert any(advanced), "the ranks wait for each other"
    return max(each.end_s for each in run)


class _Rank:
    """How far one rank has come."""

    def __init__(self, rank: int, steps: Sequence[Step], links: EmulatedLinks):
        self.rank, self.steps, self.links = rank, deque(steps), links
        self.now_s = self.end_s = 0.0

    def advance(self, arrivals: dict[tuple[int, int], deque[float]]) -> bool:
        """Do the steps for which messages are there; return whether any was done."""
        before = len(self.steps)
        while self.steps:
            step = self.steps[0]
            if step.act is Act.SEND:
                num_bytes = step.part.size * _ITEM_BYTES
                passage = self.links.carry(to=step.peer, num_bytes=num_bytes, now_s=self.now_s)
                arrivals[self.rank, step.peer].append(passage.arrives_s)
                self.end_s = max(self.end_s, passage.leaves_s)
            elif step.act is not Act.SETTLE:
                inbox = arrivals[step.peer, self.rank]
                if not inbox:
                    break
                self.now_s = max(self.now_s, inbox.popleft())
                self.end_s = max(self.end_s, self.now_s)
            self.steps.popleft()
        return len(self.steps) < before
