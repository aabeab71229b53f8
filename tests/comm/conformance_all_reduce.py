"""What all-reduces must do over every transport: each check runs on all ranks at once."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxpipe.collective.codec.block_quantized import Float8Codec, Int8Codec
from jaxpipe.collective.codec.top_k import TopKCodec
from jaxpipe.collective.kinds import AllReduceKind
from jaxpipe.collective.sync_tree import SyncTree
from jaxpipe.comm.collective import WireFormat
from jaxpipe.comm.collective.all_reduce import all_reduce
from jaxpipe.comm.collective.async_all_reduce import AsyncAllReduce
from jaxpipe.comm.collective.gather_broadcast import gather_bytes
from jaxpipe.comm.collective.native import native_of
from jaxpipe.comm.tags import ALL_REDUCE_TAG, GATHER_TAG
from jaxpipe.comm.transport import Transport
from jaxpipe.errors import ConfigError
from tests.comm.conformance import TIMEOUT_S, pass_on


def algorithms_of(transport: Transport) -> tuple[AllReduceKind, ...]:
    has_library = native_of(transport) is not None
    return tuple(kind for kind in AllReduceKind if has_library or kind != AllReduceKind.LIBRARY)


def all_reduce_sums_over_any_tree(transport: Transport) -> None:
    ranks = tuple(range(transport.num_ranks))
    half = (len(ranks) + 1) // 2
    trees: tuple[SyncTree, ...] = (ranks, tuple(reversed(ranks)), (ranks[:half], ranks[half:]))
    for tree in trees if len(ranks) > 1 else (ranks, 0):
        for size in (0, 1, 1_000_003):
            mine = np.arange(size, dtype=np.float64) + transport.rank
            total = all_reduce(transport, mine, tree, tag=ALL_REDUCE_TAG, timeout_s=TIMEOUT_S)
            expected = np.arange(size) * len(ranks) + sum(ranks)
            np.testing.assert_array_equal(total, expected.astype(np.float64), strict=True)


def every_algorithm_sums_over_any_tree(transport: Transport) -> None:
    ranks = tuple(range(transport.num_ranks))
    middle, third = (len(ranks) + 1) // 2, (len(ranks) + 2) // 3
    trees: tuple[SyncTree, ...] = (
        ranks,
        (ranks[:third], tuple(reversed(ranks[third:]))),
        ((ranks[:1], ranks[1:middle]), ranks[middle:]),
    )
    for tree in trees if len(ranks) > 2 else (ranks,):
        for size in (0, 1, 70_001):
            content = np.arange(size, dtype=np.float32) % 1_000
            expected = content * len(ranks) + sum(ranks)
            for algorithm in algorithms_of(transport):
                total = all_reduce(
                    transport,
                    content + np.float32(transport.rank),
                    tree,
                    tag=ALL_REDUCE_TAG,
                    timeout_s=TIMEOUT_S,
                    algorithm=algorithm,
                    wire=WireFormat(chunk_bytes=100_000),
                )
                np.testing.assert_array_equal(total, expected, strict=True)


def some_ranks_may_sum_while_others_do(transport: Transport) -> None:
    if transport.num_ranks != 4:
        return
    tree = (0, 3) if transport.rank in (0, 3) else (2, 1)
    for algorithm in algorithms_of(transport):
        mine = np.full(5, 10.0**transport.rank)
        total = all_reduce(transport, mine, tree, tag=0, timeout_s=TIMEOUT_S, algorithm=algorithm)
        np.testing.assert_array_equal(total, np.full(5, 10.0 ** tree[0] + 10.0 ** tree[1]))


def only_a_library_sums_in_the_library(transport: Transport) -> None:
    if native_of(transport) is not None:
        return
    with pytest.raises(ConfigError, match=r"`algorithm` is library, but .* has no library"):
        all_reduce(
            transport,
            np.ones(1),
            tuple(range(transport.num_ranks)),
            tag=0,
            timeout_s=TIMEOUT_S,
            algorithm=AllReduceKind.LIBRARY,
        )


def all_ranks_decode_the_same_bits(transport: Transport) -> None:
    ranks = tuple(range(transport.num_ranks))
    half = (len(ranks) + 1) // 2
    rng = np.random.default_rng(transport.rank)
    for tree in ((ranks[:half], ranks[half:]), ranks) if len(ranks) > 1 else (ranks,):
        for codec in (Int8Codec(), Float8Codec(), TopKCodec(fraction=0.1)):
            total = all_reduce(
                transport,
                rng.normal(size=10_001).astype(np.float32),
                tree,
                tag=ALL_REDUCE_TAG,
                timeout_s=TIMEOUT_S,
                algorithm=AllReduceKind.HIERARCHICAL,
                wire=WireFormat(far=codec, chunk_bytes=2**12),
            )
            gathered = gather_bytes(
                transport, total.tobytes(), root=0, tag=GATHER_TAG, timeout_s=TIMEOUT_S
            )
            assert gathered is None or len(set(gathered)) == 1


def sums_go_on_beside_each_other(transport: Transport) -> None:
    ranks = tuple(range(transport.num_ranks))
    worker = AsyncAllReduce(transport)
    begun = [
        worker.begin(
            jnp.full(1_000 * bucket, bucket + transport.rank, jnp.float32),
            ranks,
            tag=ALL_REDUCE_TAG + bucket,
            timeout_s=TIMEOUT_S,
            algorithm=algorithm,
        )
        for bucket, algorithm in enumerate(algorithms_of(transport))
    ]
    content = np.arange(100, dtype=np.int32)
    pass_on(transport, content, content)
    for bucket, reducing in reversed(list(enumerate(begun))):
        total = reducing.wait(timeout_s=TIMEOUT_S)
        assert isinstance(total, jax.Array)
        expected = np.full(1_000 * bucket, bucket * len(ranks) + sum(ranks), np.float32)
        np.testing.assert_array_equal(total, expected)
    worker.close(timeout_s=TIMEOUT_S)


def all_reduce_keeps_jax_arrays_on_their_device(transport: Transport) -> None:
    tree = tuple(range(transport.num_ranks))
    mine = jnp.full((3, 5), transport.rank, jnp.bfloat16)
    total = all_reduce(transport, mine, tree, tag=ALL_REDUCE_TAG, timeout_s=TIMEOUT_S)
    assert isinstance(total, jax.Array)
    assert total.sharding == mine.sharding
    np.testing.assert_array_equal(total, np.full((3, 5), sum(tree), jnp.bfloat16))


ALL_REDUCE_CHECKS = (
    all_reduce_sums_over_any_tree,
    every_algorithm_sums_over_any_tree,
    some_ranks_may_sum_while_others_do,
    only_a_library_sums_in_the_library,
    all_ranks_decode_the_same_bits,
    sums_go_on_beside_each_other,
    all_reduce_keeps_jax_arrays_on_their_device,
)
