"""Gather the shares of a flat array: each rank brings one, and all have the whole afterwards.

Around a ring, in the order of a sync tree, so that an island is left once a share. Each rank sends
all shares but that of the rank after it, and passes a message on as soon as it is there::

    rank 0    send share 0    take share 2, send it    take share 1
    rank 1    send share 1    take share 0, send it    take share 2
    rank 2    send share 2    take share 1, send it    take share 0
"""

from collections.abc import Sequence
from dataclasses import dataclass

import jax
import numpy as np

from jaxpipe.collective.shards import Part
from jaxpipe.comm.buffer import aligned_empty
from jaxpipe.comm.transport import HostOrDeviceArray, Receiving, Sending, Transport


def all_gather(
    transport: Transport,
    own: HostOrDeviceArray,
    order: Sequence[int],
    *,
    size: int,
    tag: int,
    timeout_s: float,
    chunk_bytes: int = 2**20,
) -> np.ndarray:
    """Return the `size` elements of which the ranks in `order` bring the parts, as `Part.cut` cuts.

    Every rank of `order` calls this, and no other does. Messages have `chunk_bytes` at most, and
    each may take `timeout_s`. The bits are those that were brought.

    >>> from jaxpipe.comm.local import run_ranks
    >>> def work(transport):
    ...     own = [np.array([0.0]), np.array([1.0, 2.0])][transport.rank]
    ...     return all_gather(transport, own, (0, 1), size=3, tag=0, timeout_s=1.0)
    >>> run_ranks(2, work)
    [array([0., 1., 2.]), array([0., 1., 2.])]

    Raises:
        DeadlineError: a message took longer than `timeout_s`.
        TransportError: a message could not be moved, or the job was aborted.
    """
    num_ranks, mine = len(order), list(order).index(transport.rank)
    shares = Part(0, size).cut(num_ranks)
    whole = aligned_empty((size,), own.dtype)
    whole[shares[mine].start : shares[mine].stop] = np.asarray(own)
    after, before = order[(mine + 1) % num_ranks], order[mine - 1]
    ring = _Ring(transport=transport, whole=whole, before=before, after=after, tag=tag)
    longest = max(1, chunk_bytes // whole.itemsize)
    first, *rounds = (_cut(shares[(mine - turn) % num_ranks], longest) for turn in range(num_ranks))
    arriving = [ring.receive(parts) for parts in rounds[:1]]
    sendings = ring.send(first) if rounds else []
    for turn, parts in enumerate(rounds):
        arriving += [ring.receive(ahead) for ahead in rounds[turn + 1 : turn + 2]]
        for part, receiving in zip(parts, arriving[turn], strict=True):
            whole[part.start : part.stop] = receiving.wait(timeout_s=timeout_s)
            sendings += ring.send([part]) if turn < len(rounds) - 1 else []
        arriving[turn].clear()
    for sending in sendings:
        sending.wait(timeout_s=timeout_s)
    return whole


def _cut(share: Part, longest: int) -> list[Part]:
    return list(share.cut(-(-share.size // longest))) if share.size else []


@dataclass(frozen=True, slots=True, kw_only=True)
class _Ring:
    """The neighbours of a rank, and the array of which they exchange parts."""

    transport: Transport
    whole: np.ndarray
    before: int
    after: int
    tag: int

    def send(self, parts: Sequence[Part]) -> list[Sending]:
        views = [self.whole[part.start : part.stop] for part in parts]
        return [self.transport.send(view, to=self.after, tag=self.tag) for view in views]

    def receive(self, parts: Sequence[Part]) -> list[Receiving]:
        likes = [jax.ShapeDtypeStruct((part.size,), self.whole.dtype) for part in parts]
        return [self.transport.receive(like, source=self.before, tag=self.tag) for like in likes]
