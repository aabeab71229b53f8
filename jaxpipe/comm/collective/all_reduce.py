"""All-reduce an array over the ranks of a sync tree, by any algorithm of `AllReduceKind`.

The order of the additions depends on the algorithm, the tree and the size alone: the sum has the
same bits on all ranks and in all runs. (`LIBRARY` gives no such guarantee.)
"""

from functools import cache
from typing import TypeVar

import jax
import numpy as np
from jaxtyping import Float32

from jaxpipe.collective.algorithms import all_reduce_steps
from jaxpipe.collective.codec.aligned import aligned_empty
from jaxpipe.collective.kinds import AllReduceKind
from jaxpipe.collective.step import Act, Step
from jaxpipe.collective.sync_tree import SyncTree, ranks
from jaxpipe.comm.buffer import num_bytes_of
from jaxpipe.comm.collective.execute_steps import Execution, Formats
from jaxpipe.comm.collective.native import native_of
from jaxpipe.comm.collective.wire_format import (
    CodecFormat,
    ValueFormat,
    WireFormat,
    sum_dtype,
)
from jaxpipe.comm.transport import HostOrDeviceArray, Transport
from jaxpipe.errors import ConfigError

ArrayT = TypeVar("ArrayT", np.ndarray, jax.Array)


def all_reduce(
    transport: Transport,
    array: ArrayT,
    tree: SyncTree,
    *,
    tag: int,
    timeout_s: float,
    algorithm: AllReduceKind = AllReduceKind.TREE,
    wire: WireFormat | None = None,
) -> ArrayT:
    """Return the sum of `array` over the ranks of `tree`: same shape, dtype, kind and bits on all.

    Every rank of the tree calls this with an array of the same shape and dtype, and no other rank
    does. A jax array is returned on the devices of the argument. Each message may take `timeout_s`.
    `wire` does not apply to integers, nor, unless it says so, its codec to float64.

    >>> from jaxpipe.comm.local import run_ranks
    >>> def work(transport):
    ...     mine = np.array([1.0, transport.rank])
    ...     return all_reduce(transport, mine, ((0, 2), 1), tag=0, timeout_s=1.0)
    >>> run_ranks(3, work)
    [array([3., 3.]), array([3., 3.]), array([3., 3.])]

    Raises:
        ConfigError: `wire` has a codec for far messages but `algorithm` is not hierarchical, or
            `algorithm` is `LIBRARY` and the transport has no native all-reduce.
        DeadlineError: a message took longer than `timeout_s`.
        TransportError: a message could not be moved, or the job was aborted.
    """
    wire = wire or WireFormat()
    _check(transport, tree, algorithm, wire)
    if algorithm.facts.is_native:
        total = _native_all_reduce(transport, array, tree, timeout_s=timeout_s)
    else:
        execution = _execution(transport, array, wire, None, tag=tag, timeout_s=timeout_s)
        total = execution.run(_steps(transport.rank, array, tree, algorithm, wire))
    return _as(total, array)


def all_reduce_with_feedback(
    transport: Transport,
    array: ArrayT,
    tree: SyncTree,
    errors: Float32[np.ndarray, " size"],
    *,
    tag: int,
    timeout_s: float,
    wire: WireFormat,
) -> tuple[ArrayT, Float32[np.ndarray, " size"]]:
    """Return the sum, and the error of the codec `wire.far`: the `errors` of the next call.

    A hierarchical all-reduce that adds the errors of earlier ones to what it encodes. Start with
    `np.zeros(array.size, np.float32)`; `errors` is written to.

    >>> from jaxpipe.comm.local import run_ranks
    >>> from jaxpipe.collective.codec.top_k import TopKCodec
    >>> wire = WireFormat(far=TopKCodec(fraction=0.5))
    >>> def work(transport):
    ...     mine, errors = np.array([2, 1], np.float32), np.zeros(2, np.float32)
    ...     return all_reduce_with_feedback(
    ...         transport, mine, (0, 1), errors, tag=0, timeout_s=1.0, wire=wire)
    >>> run_ranks(2, work)[0]
    (array([4., 0.], dtype=float32), array([0., 1.], dtype=float32))

    Source: Tang et al., "DoubleSqueeze", ICML 2019: feedback of the errors of both directions.

    Raises:
        DeadlineError: a message took longer than `timeout_s`.
        TransportError: a message could not be moved, or the job was aborted.
    """
    assert errors.shape == (array.size,), (errors.shape, array.size)
    algorithm = AllReduceKind.HIERARCHICAL
    _check(transport, tree, algorithm, wire)
    execution = _execution(transport, array, wire, errors, tag=tag, timeout_s=timeout_s)
    total = execution.run(_steps(transport.rank, array, tree, algorithm, wire))
    return _as(total, array), errors


@cache
def all_reduce_bytes(
    rank: int,
    like: jax.ShapeDtypeStruct,
    tree: SyncTree,
    *,
    algorithm: AllReduceKind,
    wire: WireFormat,
) -> int:
    """Return the bytes that a rank sends in an all-reduce of such an array; 0 if it is native.

    >>> like, wire = jax.ShapeDtypeStruct((5,), np.dtype(np.float32)), WireFormat()
    >>> [all_reduce_bytes(rank, like, (0, (1, 2)), algorithm=AllReduceKind.TREE, wire=wire)
    ...     for rank in range(3)]
    [20, 40, 20]
    """
    if algorithm.facts.is_native:
        return 0
    formats = _formats(np.dtype(like.dtype), wire, None)
    return sum(
        num_bytes_of(formats.of(step).like(size=step.part.size))
        for step in _steps(rank, like, tree, algorithm, wire)
        if step.act is Act.SEND
    )


def _check(
    transport: Transport, tree: SyncTree, algorithm: AllReduceKind, wire: WireFormat
) -> None:
    members = ranks(tree)
    assert transport.rank in members, f"rank {transport.rank} is not in the tree {tree}"
    assert len(set(members)) == len(members), f"the tree {tree} contains a rank twice"
    if wire.far is not None and not algorithm.facts.has_far_messages:
        raise ConfigError(
            f"`algorithm` must have far messages for a codec to encode, {algorithm} has none; set "
            f"it to {AllReduceKind.HIERARCHICAL}, or the codec to none"
        )


def _execution(
    transport: Transport,
    array: HostOrDeviceArray,
    wire: WireFormat,
    errors: np.ndarray | None,
    *,
    tag: int,
    timeout_s: float,
) -> Execution:
    vector = np.ascontiguousarray(np.asarray(array)).reshape(-1)
    formats = _formats(vector.dtype, wire, errors)
    return Execution(transport, vector, formats, tag=tag, timeout_s=timeout_s)


def _formats(dtype: np.dtype, wire: WireFormat, errors: np.ndarray | None) -> Formats:
    near = ValueFormat(wire.dtype_of(dtype))
    codec = wire.far if wire.encodes(dtype) else None
    return Formats(near=near, far=near if codec is None else CodecFormat(codec, errors))


def _steps(
    rank: int,
    array: HostOrDeviceArray | jax.ShapeDtypeStruct,
    tree: SyncTree,
    algorithm: AllReduceKind,
    wire: WireFormat,
) -> list[Step]:
    item_bytes = wire.dtype_of(np.dtype(array.dtype)).itemsize
    message_size = max(1, wire.chunk_bytes // item_bytes)
    return all_reduce_steps(algorithm, tree, rank, size=array.size, message_size=message_size)


def _native_all_reduce(
    transport: Transport, array: HostOrDeviceArray, tree: SyncTree, *, timeout_s: float
) -> np.ndarray:
    library = native_of(transport)
    if library is None:
        raise ConfigError(
            f"`algorithm` is {AllReduceKind.LIBRARY}, but {type(transport).__name__} has no library"
            f" with an all-reduce; choose another one, such as {AllReduceKind.HIERARCHICAL}"
        )
    # A copy: the library sums in place, and the argument belongs to the caller.
    total = aligned_empty(array.shape, sum_dtype(array.dtype))
    total[...] = array
    return library.native_all_reduce(total, members=ranks(tree), timeout_s=timeout_s)


def _as(total: np.ndarray, array: ArrayT) -> ArrayT:
    """Return the total in the shape and dtype of `array`, and on its devices."""
    total = total.astype(array.dtype, copy=False).reshape(array.shape)
    if isinstance(array, jax.Array):
        return jax.device_put(total, array.sharding)
    return total
