"""Every algorithm sums: the same bits on all ranks and in all runs, whatever travels."""

import math

import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxpipe.collective import AllReduceKind
from jaxpipe.collective.codec.bfloat16 import Bfloat16Codec
from jaxpipe.collective.codec.block_quantized import Float8Codec, Int8Codec
from jaxpipe.collective.codec.codec import Codec
from jaxpipe.collective.codec.top_k import TopKCodec
from jaxpipe.collective.sync_tree import SyncTree, ranks
from jaxpipe.comm import Transport, all_reduce, run_ranks
from jaxpipe.comm.collective import WireFormat
from tests.collective.strategies import sync_trees

pytestmark = pytest.mark.slow

ALGORITHMS = tuple(kind for kind in AllReduceKind if not kind.facts.is_native)
SIZES = st.sampled_from([0, 1, 2, 7, 300, 1_001])
SEEDS = st.integers(0, 2**32 - 1)
BFLOAT16 = np.dtype(jnp.bfloat16)


def sums(
    arrays: list[np.ndarray], tree: SyncTree, algorithm: AllReduceKind, wire: WireFormat
) -> list[np.ndarray]:
    def work(transport: Transport) -> np.ndarray:
        mine = arrays[transport.rank]
        return all_reduce(
            transport, mine, tree, tag=0, timeout_s=10.0, algorithm=algorithm, wire=wire
        )

    return run_ranks(len(arrays), work)


def draw_arrays(tree: SyncTree, *, size: int, seed: int, dtype: np.dtype) -> list[np.ndarray]:
    rng = np.random.default_rng(seed)
    return [rng.normal(size=size).astype(dtype) for _ in ranks(tree)]


def the_one(totals: list[np.ndarray]) -> np.ndarray:
    """Return the total of all ranks, who must agree on its bits."""
    assert len({total.tobytes() for total in totals}) == 1
    return totals[0]


def bound(arrays: list[np.ndarray], epsilon: float) -> np.ndarray:
    """Return how far a sum may be off whose terms are rounded, at most once for each rank."""
    return len(arrays) * epsilon * np.sum(np.abs(np.array(arrays, np.float64)), axis=0)


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", ALGORITHMS)
@settings(max_examples=25, deadline=None)
@given(
    tree=sync_trees(most_ranks=7),
    size=SIZES,
    seed=SEEDS,
    dtype=st.sampled_from([np.dtype(np.float32), np.dtype(np.float64)]),
    chunk_bytes=st.sampled_from([1, 4, 100, 2**20]),
)
def test_equals_the_sum(
    algorithm: AllReduceKind,
    tree: SyncTree,
    size: int,
    seed: int,
    dtype: np.dtype,
    chunk_bytes: int,
):
    size = size if chunk_bytes >= 100 else min(size, 7)
    arrays = draw_arrays(tree, size=size, seed=seed, dtype=dtype)
    wire = WireFormat(chunk_bytes=chunk_bytes)
    total = the_one(sums(arrays, tree, algorithm, wire))
    assert total.dtype == dtype
    assert total.shape == (size,)
    assert total.tobytes() == the_one(sums(arrays, tree, algorithm, wire)).tobytes()
    exact = np.array([math.fsum(terms) for terms in zip(*arrays, strict=True)])
    assert np.all(np.abs(total - exact) <= bound(arrays, float(np.finfo(dtype).eps)))


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@settings(max_examples=15, deadline=None)
@given(
    tree=sync_trees(most_ranks=7),
    size=SIZES,
    seed=SEEDS,
    dtype=st.sampled_from([BFLOAT16, np.dtype(np.float32)]),
)
def test_a_narrow_wire_rounds_messages_and_not_additions(
    algorithm: AllReduceKind, tree: SyncTree, size: int, seed: int, dtype: np.dtype
):
    arrays = draw_arrays(tree, size=size, seed=seed, dtype=dtype)
    total = the_one(sums(arrays, tree, algorithm, WireFormat(dtype=BFLOAT16)))
    assert total.dtype == dtype
    exact = np.sum(np.array(arrays, np.float64), axis=0)
    # each value takes part in at most as many messages as there are ranks, and one for the total
    allowed = 2.0**-8 * (bound(arrays, 1.0) + 2 * np.abs(exact))
    assert np.all(np.abs(total.astype(np.float64) - exact) <= 1.1 * allowed)


def test_sums_are_made_in_float32():
    """256 + 1 is 256 in bfloat16; 256 + 1 + 1 is 258."""
    arrays = [np.full(1, value, BFLOAT16) for value in (256, 1, 1)]
    for algorithm in (AllReduceKind.TREE, AllReduceKind.SHARDED, AllReduceKind.CENTRAL):
        assert float(the_one(sums(arrays, (0, 1, 2), algorithm, WireFormat()))[0]) == 258.0


CODECS: list[tuple[Codec, float]] = [
    (Bfloat16Codec(), 2.0**-8),
    (Int8Codec(), 1 / 254),
    (Float8Codec(), 2.0**-4 + 2.0**-11),
    (TopKCodec(fraction=1.0), 2.0**-23),
]


@pytest.mark.parametrize(("codec", "epsilon"), CODECS, ids=lambda value: type(value).__name__)
@pytest.mark.parametrize("dtype", [BFLOAT16, np.dtype(np.float32)], ids=str)
@settings(max_examples=20, deadline=None)
@given(tree=sync_trees(most_ranks=7), size=SIZES, seed=SEEDS)
def test_a_codec_between_islands_keeps_the_bits_alike(
    codec: Codec, epsilon: float, dtype: np.dtype, tree: SyncTree, size: int, seed: int
):
    arrays = draw_arrays(tree, size=size, seed=seed, dtype=dtype)
    wire = WireFormat(far=codec)
    total = the_one(sums(arrays, tree, AllReduceKind.HIERARCHICAL, wire))
    again = the_one(sums(arrays, tree, AllReduceKind.HIERARCHICAL, wire))
    assert total.tobytes() == again.tobytes()
    exact = np.sum(np.array(arrays, np.float64), axis=0)
    # A codec errs by a part of the largest value in a block, wherever in it each rank has its own.
    largest = sum(float(np.abs(array).max(initial=0.0)) for array in arrays)
    near = float(jnp.finfo(dtype).eps) * (len(arrays) + 1)
    # encoded twice: the terms, and the sum, whose own error grows
    assert np.all(np.abs(total - exact) <= largest * ((1 + epsilon + near) ** 2 - 1 + 1e-6))


def test_a_codec_is_for_what_crosses_the_root_alone():
    """With int8 in an island of ones and an island of 1e-3, only island sums are rounded."""
    arrays = [np.array([1.0, 1e-3], np.float32)] * 4
    inside = the_one(sums(arrays, (0, 1, 2, 3), AllReduceKind.HIERARCHICAL, WireFormat()))
    across = the_one(
        sums(arrays, ((0, 1), (2, 3)), AllReduceKind.HIERARCHICAL, WireFormat(far=Int8Codec()))
    )
    np.testing.assert_allclose(inside, [4.0, 4e-3], rtol=1e-6)
    np.testing.assert_allclose(across, [4.0, 4e-3], atol=4 / 254)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_integers_travel_as_they_are(algorithm: AllReduceKind):
    arrays = [np.full(5, 2**30 + rank, np.int64) for rank in range(3)]
    total = the_one(sums(arrays, ((0, 1), 2), algorithm, WireFormat(dtype=BFLOAT16)))
    np.testing.assert_array_equal(total, np.full(5, 3 * 2**30 + 3), strict=True)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_keeps_the_shape_and_the_callers_array(algorithm: AllReduceKind):
    arrays = [np.full((2, 3), rank, np.float32).T for rank in range(2)]
    total = the_one(sums(arrays, (0, 1), algorithm, WireFormat()))
    np.testing.assert_array_equal(total, np.ones((3, 2), np.float32), strict=True)
    np.testing.assert_array_equal(arrays[1], np.ones((3, 2), np.float32))


def test_adds_in_the_order_of_the_tree():
    values = [1.0, 1e16, -1e16]
    arrays = [np.array([value]) for value in values]

    def total(tree: SyncTree) -> float:
        return float(the_one(sums(arrays, tree, AllReduceKind.HIERARCHICAL, WireFormat()))[0])

    assert total((0, (1, 2))) == 1.0
    assert total(((0, 1), 2)) == 0.0


def test_what_overflows_is_seen_by_all():
    arrays = [np.full(600, 3e38, np.float32) for _ in range(4)]
    for codec, _ in CODECS:
        with np.errstate(over="ignore"):
            totals = sums(
                arrays, ((0, 1), (2, 3)), AllReduceKind.HIERARCHICAL, WireFormat(far=codec)
            )
        assert not np.any(np.isfinite(the_one(totals)))
