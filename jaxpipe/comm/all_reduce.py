"""Sum an array over the ranks of a sync tree.

The sum ascends: each island's leader adds what the leaders of its members send, in the members'
order. Then it descends: each leader sends the sum back to them::

    ((0, 2), (5, 7))         0 <------- 5        ascend: 0 adds 2, 5 adds 7, then 0 adds 5
                           0 <- 2     5 <- 7     descend: 0 to 5, then 0 to 2 and 5 to 7

Each rank but the leader of the whole tree sends the array once and receives it once, so the time is
that of the slowest path up and down. The order of the additions depends on the tree alone: the sum
has the same bits on all ranks and in all runs.
"""

from typing import TypeVar

import jax
import numpy as np

from jaxpipe.comm.buffer import aligned_empty
from jaxpipe.comm.transport import Transport
from jaxpipe.schedule.sync_tree import SyncTree, leader, ranks

ArrayT = TypeVar("ArrayT", np.ndarray, jax.Array)


def all_reduce(
    transport: Transport, array: ArrayT, tree: SyncTree, *, tag: int, timeout_s: float
) -> ArrayT:
    """Return the sum of `array` over the ranks of `tree`: same shape, dtype, kind and bits on all.

    Every rank of the tree calls this with an array of the same shape and dtype, and no other rank
    does. A jax array comes back on the devices where it was. Each message may take `timeout_s`.

    >>> from jaxpipe.comm.local import run_ranks
    >>> def work(transport):
    ...     mine = np.array([1.0, transport.rank])
    ...     return all_reduce(transport, mine, ((0, 2), 1), tag=0, timeout_s=1.0)
    >>> run_ranks(3, work)
    [array([3., 3.]), array([3., 3.]), array([3., 3.])]

    Raises:
        DeadlineError: a message took longer than `timeout_s`.
        TransportError: a message could not be moved, or the job was aborted.
    """
    total = _sum_on_host(transport, np.asarray(array), tree, tag=tag, timeout_s=timeout_s)
    if isinstance(array, jax.Array):
        return jax.device_put(total, array.sharding)
    return total


def children(tree: SyncTree, rank: int) -> tuple[int, ...]:
    """Return the ranks whose sums `rank` adds to its own, in order: innermost island first.

    >>> children(((0, 2), (5, 7)), 0)
    (2, 5)
    """
    if isinstance(tree, int):
        return ()
    inner = next(children(member, rank) for member in tree if rank in ranks(member))
    return inner + tuple(leader(member) for member in tree[1:]) if rank == leader(tree) else inner


def parent(tree: SyncTree, rank: int) -> int | None:
    """Return the rank to which `rank` sends its sum, or None for the leader of the whole tree.

    >>> [parent(((0, 2), (5, 7)), rank) for rank in (0, 2, 5, 7)]
    [None, 0, 0, 5]
    """
    if rank == leader(tree) or isinstance(tree, int):
        return None
    member = next(member for member in tree if rank in ranks(member))
    return leader(tree) if rank == leader(member) else parent(member, rank)


def _sum_on_host(
    transport: Transport, array: np.ndarray, tree: SyncTree, *, tag: int, timeout_s: float
) -> np.ndarray:
    members = ranks(tree)
    assert transport.rank in members, f"rank {transport.rank} is not in the tree {tree}"
    assert len(set(members)) == len(members), f"a rank stands twice in the tree {tree}"
    below, above = children(tree, transport.rank), parent(tree, transport.rank)
    like = jax.ShapeDtypeStruct(array.shape, array.dtype)
    ascending = [transport.receive(like, source=child, tag=tag) for child in below]
    descending = None if above is None else transport.receive(like, source=above, tag=tag)

    total = aligned_empty(array.shape, array.dtype)
    total[...] = array
    for receiving in ascending:
        np.add(total, receiving.wait(timeout_s=timeout_s), out=total)
    if above is not None and descending is not None:
        sending = transport.send(total, to=above, tag=tag)
        total = np.asarray(descending.wait(timeout_s=timeout_s))
        sending.wait(timeout_s=timeout_s)
    for sending in [transport.send(total, to=child, tag=tag) for child in reversed(below)]:
        sending.wait(timeout_s=timeout_s)
    return total
