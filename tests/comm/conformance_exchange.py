"""What the other collectives must do over every transport: each check runs on all ranks at once."""

import jax
import jax.numpy as jnp
import numpy as np

from jaxpipe.collective import SyncTree, leader
from jaxpipe.collective.shards import ElementRange
from jaxpipe.comm import all_gather, all_to_all, broadcast, reduce_scatter
from jaxpipe.comm.tags import ALL_REDUCE_TAG
from jaxpipe.comm.transport import Transport
from tests.comm.conformance import TIMEOUT_S

SIZES = (0, 1, 5, 70_001)
CHUNK_BYTES = 100_000


def orders_of(transport: Transport) -> tuple[tuple[int, ...], ...]:
    ranks = tuple(range(transport.num_ranks))
    return ranks, ranks[::-1]


def brought_by(rank: int, size: int) -> np.ndarray:
    """Return whole numbers, whose sums are exact in any order."""
    return ((np.arange(size) * 7 + rank * 31) % 1_000).astype(np.float32)


def a_reduce_scatter_gives_each_rank_its_part_of_the_sum(transport: Transport) -> None:
    for order in orders_of(transport):
        for size in SIZES:
            part = reduce_scatter(
                transport,
                brought_by(transport.rank, size),
                order,
                tag=ALL_REDUCE_TAG,
                timeout_s=TIMEOUT_S,
                chunk_bytes=CHUNK_BYTES,
            )
            expected = np.sum([brought_by(rank, size) for rank in order], axis=0)
            own = ElementRange(0, size).cut(len(order))[order.index(transport.rank)]
            np.testing.assert_array_equal(part, expected[own.start : own.stop], strict=True)


def an_all_gather_gives_every_rank_all_parts(transport: Transport) -> None:
    for order in orders_of(transport):
        for size in SIZES:
            whole = np.random.default_rng(size).normal(size=size)
            own = ElementRange(0, size).cut(len(order))[order.index(transport.rank)]
            gathered = all_gather(
                transport,
                whole[own.start : own.stop],
                order,
                size=size,
                tag=ALL_REDUCE_TAG,
                timeout_s=TIMEOUT_S,
                chunk_bytes=CHUNK_BYTES,
            )
            np.testing.assert_array_equal(gathered, whole, strict=True)


def a_broadcast_gives_every_rank_what_the_leader_has(transport: Transport) -> None:
    for order in orders_of(transport):
        tree: SyncTree = (order[0], order[1:]) if len(order) > 1 else order
        for size in SIZES:
            got = broadcast(
                transport,
                brought_by(transport.rank, size).reshape(1, size),
                tree,
                tag=ALL_REDUCE_TAG,
                timeout_s=TIMEOUT_S,
                chunk_bytes=CHUNK_BYTES,
            )
            expected = brought_by(leader(tree), size).reshape(1, size)
            np.testing.assert_array_equal(got, expected, strict=True)


def an_all_to_all_transposes_blocks(transport: Transport) -> None:
    num_ranks = transport.num_ranks
    for order in orders_of(transport):
        mine = order.index(transport.rank)
        for size in SIZES:
            # Blocks of all sizes from nothing up, none of them equal to the one that comes back.
            sizes = [[size * (i + 2 * j) for j in range(num_ranks)] for i in range(num_ranks)]
            brought = [brought_by(rank, sum(row)) for rank, row in zip(order, sizes, strict=True)]
            got = all_to_all(
                transport,
                brought[mine],
                order,
                sizes=sizes,
                tag=ALL_REDUCE_TAG,
                timeout_s=TIMEOUT_S,
                chunk_bytes=CHUNK_BYTES,
            )
            blocks = [
                np.split(array, np.cumsum(row)[:-1])[mine]
                for array, row in zip(brought, sizes, strict=True)
            ]
            np.testing.assert_array_equal(got, np.concatenate(blocks), strict=True)


def jax_arrays_are_exchanged_with_all_their_bits(transport: Transport) -> None:
    order = tuple(range(transport.num_ranks))
    special = jnp.array([-0.0, jnp.nan, jnp.inf, 1.5], jnp.bfloat16)
    content = jnp.tile(special, transport.num_ranks)
    got = all_to_all(transport, content, order, tag=ALL_REDUCE_TAG, timeout_s=TIMEOUT_S)
    assert got.tobytes() == np.asarray(content).tobytes()
    sent = broadcast(transport, content, order, tag=ALL_REDUCE_TAG, timeout_s=TIMEOUT_S)
    assert sent.tobytes() == np.asarray(content).tobytes()
    assert isinstance(jax.device_put(sent), jax.Array)


EXCHANGE_CHECKS = (
    a_reduce_scatter_gives_each_rank_its_part_of_the_sum,
    an_all_gather_gives_every_rank_all_parts,
    a_broadcast_gives_every_rank_what_the_leader_has,
    an_all_to_all_transposes_blocks,
    jax_arrays_are_exchanged_with_all_their_bits,
)
