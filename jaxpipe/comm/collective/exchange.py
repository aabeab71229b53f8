"""All-gather, reduce-scatter, broadcast and all-to-all of flat arrays, over any transport.

::

                     rank 0 brings   rank 1 brings    rank 0 has     rank 1 has
    all-gather       a0              b1               a0 b1          a0 b1
    reduce-scatter   a0 a1           b0 b1            a0+b0          a1+b1
    broadcast        a0 a1                            a0 a1          a0 a1
    all-to-all       a0 a1           b0 b1            a0 b0          a1 b1

Every rank of the group calls the same function with the same arguments, but for its own array, and
no other rank does. All-gather and reduce-scatter go around a ring in the given order: that of a
sync tree's ranks leaves each island once.

Each message has `chunk_bytes` at most and may take `timeout_s`. All of them raise a `DeadlineError`
if one takes longer, and a `TransportError` if one cannot be moved or the job was aborted.
"""

from collections.abc import Sequence

import numpy as np

from jaxpipe.collective.algorithms import (
    all_gather_steps,
    all_to_all_steps,
    broadcast_steps,
    reduce_scatter_steps,
)
from jaxpipe.collective.codec.aligned import aligned_empty
from jaxpipe.collective.shards import ElementRange, consecutive
from jaxpipe.collective.sync_tree import SyncTree, leader
from jaxpipe.comm.collective.execute_steps import Execution, Formats
from jaxpipe.comm.collective.wire_format import ValueFormat
from jaxpipe.comm.transport import HostOrDeviceArray, Transport

_CHUNK_BYTES = 2**20


def all_gather(
    transport: Transport,
    piece: HostOrDeviceArray,
    order: Sequence[int],
    *,
    size: int,
    tag: int,
    timeout_s: float,
    chunk_bytes: int = _CHUNK_BYTES,
) -> np.ndarray:
    """Return the `size` elements of which the ranks in `order` bring the parts, as `Part.cut` cuts.

    The bits are those that were brought.

    >>> from jaxpipe.comm.local import run_ranks
    >>> def work(transport):
    ...     own = [np.array([0.0]), np.array([1.0, 2.0])][transport.rank]
    ...     return all_gather(transport, own, (0, 1), size=3, tag=0, timeout_s=1.0)
    >>> run_ranks(2, work)
    [array([0., 1., 2.]), array([0., 1., 2.])]
    """
    share = ElementRange(0, size).cut(len(order))[list(order).index(transport.rank)]
    gathered = aligned_empty((size,), piece.dtype)
    # In place: the sends of a ring read the array that its receives complete.
    gathered[share.start : share.stop] = np.asarray(piece)
    steps = all_gather_steps(
        order, transport.rank, size=size, message_size=_message_size(gathered, chunk_bytes)
    )
    execution = Execution(
        transport, gathered, _as_they_are(gathered), tag=tag, timeout_s=timeout_s, total=gathered
    )
    return execution.run(steps)


def reduce_scatter(
    transport: Transport,
    array: HostOrDeviceArray,
    order: Sequence[int],
    *,
    tag: int,
    timeout_s: float,
    chunk_bytes: int = _CHUNK_BYTES,
) -> np.ndarray:
    """Return this rank's part of the sum over the ranks in `order`, as `Part.cut` cuts it.

    Sums are made in float32 at least; an all-gather of the parts gives all ranks the same bits.

    >>> from jaxpipe.comm.local import run_ranks
    >>> def work(transport):
    ...     mine = np.array([1.0, 2.0, transport.rank])
    ...     return reduce_scatter(transport, mine, (0, 1), tag=0, timeout_s=1.0)
    >>> run_ranks(2, work)
    [array([2.]), array([4., 1.])]
    """
    vector = _flat(array)
    share = ElementRange(0, vector.size).cut(len(order))[list(order).index(transport.rank)]
    steps = reduce_scatter_steps(
        order, transport.rank, size=vector.size, message_size=_message_size(vector, chunk_bytes)
    )
    execution = Execution(transport, vector, _as_they_are(vector), tag=tag, timeout_s=timeout_s)
    total = execution.run(steps)[share.start : share.stop]
    # A copy: a view would keep the memory of the whole array.
    part = aligned_empty((share.size,), vector.dtype)
    part[...] = total
    return part


def broadcast(
    transport: Transport,
    array: HostOrDeviceArray,
    tree: SyncTree,
    *,
    tag: int,
    timeout_s: float,
    chunk_bytes: int = _CHUNK_BYTES,
) -> np.ndarray:
    """Return the array of the leader of `tree`; those of the others say its shape and dtype only.

    >>> from jaxpipe.comm.local import run_ranks
    >>> def work(transport):
    ...     mine = np.full(2, transport.rank)
    ...     return broadcast(transport, mine, (1, 0), tag=0, timeout_s=1.0)
    >>> run_ranks(2, work)
    [array([1, 1]), array([1, 1])]
    """
    vector = _flat(array)
    steps = broadcast_steps(
        tree, transport.rank, size=vector.size, message_size=_message_size(vector, chunk_bytes)
    )
    total = aligned_empty(vector.shape, vector.dtype)
    if transport.rank == leader(tree):
        total[...] = vector
    execution = Execution(
        transport, vector, _as_they_are(vector), tag=tag, timeout_s=timeout_s, total=total
    )
    return execution.run(steps).reshape(array.shape)


def all_to_all(
    transport: Transport,
    array: HostOrDeviceArray,
    order: Sequence[int],
    *,
    tag: int,
    timeout_s: float,
    sizes: Sequence[Sequence[int]] | None = None,
    chunk_bytes: int = _CHUNK_BYTES,
) -> np.ndarray:
    """Return the blocks that the ranks in `order` have for this one, in that order.

    A rank's flat array is cut into one block for each rank: evenly, as `Part.cut` cuts, or
    `sizes[n][j]` elements of the n-th rank for the j-th. The bits are those that were brought.

    >>> from jaxpipe.comm.local import run_ranks
    >>> def work(transport):
    ...     mine = np.arange(3) + 10 * transport.rank
    ...     return all_to_all(transport, mine, (0, 1), tag=0, timeout_s=1.0)
    >>> run_ranks(2, work)
    [array([ 0, 10]), array([ 1,  2, 11, 12])]
    """
    vector, mine = _flat(array), list(order).index(transport.rank)
    if sizes is None:
        sizes = [[part.size for part in ElementRange(0, vector.size).cut(len(order))]] * len(order)
    assert sum(sizes[mine]) == vector.size, (sizes[mine], vector.size)
    leaving, arriving = consecutive(sizes[mine])[mine], consecutive([row[mine] for row in sizes])
    total = aligned_empty((arriving[-1].stop,), vector.dtype)
    total[arriving[mine].start : arriving[mine].stop] = vector[leaving.start : leaving.stop]
    steps = all_to_all_steps(
        order, transport.rank, sizes=sizes, message_size=_message_size(vector, chunk_bytes)
    )
    execution = Execution(
        transport, vector, _as_they_are(vector), tag=tag, timeout_s=timeout_s, total=total
    )
    return execution.run(steps)


def _flat(array: HostOrDeviceArray) -> np.ndarray:
    return np.ascontiguousarray(np.asarray(array)).reshape(-1)


def _as_they_are(array: np.ndarray) -> Formats:
    values = ValueFormat(array.dtype)
    return Formats(near=values, far=values)


def _message_size(array: np.ndarray, chunk_bytes: int) -> int:
    return max(1, chunk_bytes // array.itemsize)
