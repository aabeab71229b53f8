"""All-reduces beside the computation: in order, with deadlines, errors where they are awaited."""

import threading
import time

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxpipe import topo
from jaxpipe.collective import AllReduceKind
from jaxpipe.collective.codec.block_quantized import Int8Codec
from jaxpipe.collective.codec.top_k import TopKCodec
from jaxpipe.comm import (
    AsyncAllReduce,
    ShapedTransport,
    Transport,
    WireFormat,
    all_reduce,
    run_ranks,
)
from jaxpipe.errors import ConfigError, DeadlineError

ALGORITHMS = tuple(kind for kind in AllReduceKind if not kind.facts.is_native)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_a_rank_that_never_comes_is_missed_by_all_others(algorithm: AllReduceKind):
    def work(transport: Transport) -> str:
        if transport.rank == 2:
            return "away"
        start_s = time.monotonic()
        with pytest.raises(
            DeadlineError, match=r"timed out after 0\.2 s waiting for \d+ bytes from rank"
        ):
            all_reduce(
                transport,
                np.ones(60),
                ((0, 1), (2, 3)),
                tag=0,
                timeout_s=0.2,
                algorithm=algorithm,
            )
        assert time.monotonic() - start_s < 5.0
        return "missed"

    assert run_ranks(4, work) == ["missed", "missed", "away", "missed"]


def test_begins_before_the_array_is_computed_and_returns_at_once():
    slow = jax.jit(lambda x: jax.lax.fori_loop(0, 200, lambda _, y: jnp.tanh(y @ y), x))
    slow(jnp.eye(200)).block_until_ready()

    def work(transport: Transport) -> float:
        worker = AsyncAllReduce(transport)
        computed = slow(jnp.eye(200))
        reducing = worker.begin(computed, (0, 1), tag=0, timeout_s=10.0)
        total = reducing.wait(timeout_s=10.0)
        assert reducing.is_over
        worker.close(timeout_s=10.0)
        return float(jnp.abs(total - 2 * computed).max())

    assert run_ranks(2, work) == [0.0, 0.0]


def test_the_caller_goes_on_while_another_rank_is_late():
    late = threading.Event()

    def work(transport: Transport) -> None:
        worker = AsyncAllReduce(transport)
        if transport.rank == 1:
            assert late.wait(10.0)
        reducing = worker.begin(np.ones(3), (0, 1), tag=3, timeout_s=10.0)
        if transport.rank == 0:
            with pytest.raises(DeadlineError, match="waiting for the all-reduce with tag 3"):
                reducing.wait(timeout_s=0.01)
            assert not reducing.is_over
            late.set()
        np.testing.assert_array_equal(reducing.wait(timeout_s=10.0), np.full(3, 2.0))
        worker.close(timeout_s=10.0)

    run_ranks(2, work)


def test_a_sum_does_not_wait_for_one_of_another_tag():
    come = threading.Event()

    def work(transport: Transport) -> None:
        worker = AsyncAllReduce(transport)
        first = None
        if transport.rank == 0:
            first = worker.begin(np.ones(3), (0, 1), tag=0, timeout_s=10.0)
        second = worker.begin(np.ones(2), (0, 1), tag=1, timeout_s=10.0)
        np.testing.assert_array_equal(second.wait(timeout_s=10.0), np.full(2, 2.0))
        if transport.rank == 0:
            come.set()
        assert come.wait(10.0)
        first = first or worker.begin(np.ones(3), (0, 1), tag=0, timeout_s=10.0)
        np.testing.assert_array_equal(first.wait(timeout_s=10.0), np.full(3, 2.0))
        worker.close(timeout_s=10.0)

    run_ranks(2, work)


def test_after_an_error_all_that_follow_with_its_tag_fail_with_it():
    def work(transport: Transport) -> None:
        worker = AsyncAllReduce(transport)
        kind = AllReduceKind.LIBRARY
        first, second = (
            worker.begin(np.ones(3), (0, 1), tag=tag, timeout_s=10.0, algorithm=kind)
            for tag in (0, 1)
        )
        for reducing in (second, first):
            with pytest.raises(ConfigError, match="has no library with an all-reduce"):
                reducing.wait(timeout_s=10.0)
        worker.close(timeout_s=10.0)

    run_ranks(2, work)


def test_a_deadline_comes_out_where_it_is_awaited_and_the_thread_ends():
    def work(transport: Transport) -> None:
        if transport.rank == 1:
            return
        worker = AsyncAllReduce(transport)
        reducing = worker.begin(np.ones(3), (0, 1), tag=0, timeout_s=0.1)
        with pytest.raises(DeadlineError, match="24 bytes from rank 1 to rank 0 with tag 0"):
            reducing.wait(timeout_s=10.0)
        worker.close(timeout_s=10.0)

    run_ranks(2, work)
    assert not [each for each in threading.enumerate() if each.name.startswith("reduce ")]


def test_close_gives_up_on_what_does_not_end():
    def work(transport: Transport) -> None:
        if transport.rank == 1:
            return
        worker = AsyncAllReduce(transport)
        reducing = worker.begin(np.ones(3), (0, 1), tag=0, timeout_s=0.5)
        with pytest.raises(DeadlineError, match="waiting for the thread reduce 0 of rank 0"):
            worker.close(timeout_s=0.1)
        with pytest.raises(DeadlineError):
            reducing.wait(timeout_s=10.0)
        worker.close(timeout_s=10.0)

    run_ranks(2, work)


@pytest.mark.parametrize("tree", [(0, 1, 2), ((0, 1), 2), 0], ids=str)
@settings(max_examples=10, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), size=st.sampled_from([0, 1, 700]))
def test_with_feedback_the_sums_add_up_in_the_long_run(
    tree: int | tuple[int | tuple[int, ...], ...], seed: int, size: int
):
    """What was lost is not lost: all sums together, and the errors, are the sum of all terms."""
    num_ranks, num_steps = 1 if tree == 0 else 3, 12
    terms = np.random.default_rng(seed).normal(size=(num_steps, num_ranks, size))
    terms = terms.astype(np.float32)
    wire = WireFormat(far=TopKCodec(fraction=0.2), chunk_bytes=300)

    def work(transport: Transport) -> tuple[np.ndarray, np.ndarray]:
        worker = AsyncAllReduce(transport, feeds_back=True)
        totals = [
            worker.begin(
                step[transport.rank],
                tree,
                tag=7,
                timeout_s=10.0,
                algorithm=AllReduceKind.HIERARCHICAL,
                wire=wire,
            ).wait(timeout_s=10.0)
            for step in terms
        ]
        worker.close(timeout_s=10.0)
        return np.array(totals), worker.errors[7]

    results = run_ranks(num_ranks, work)
    assert len({totals.tobytes() for totals, _ in results}) == 1
    errors = np.sum([error for _, error in results], axis=0)
    told = np.sum(results[0][0].astype(np.float64), axis=0)
    np.testing.assert_allclose(told + errors, terms.sum(axis=(0, 1)), atol=1e-3)


def test_without_feedback_the_codec_alone_is_used():
    def work(transport: Transport) -> dict[int, np.ndarray]:
        worker = AsyncAllReduce(transport)
        worker.begin(
            np.ones(3, np.float32),
            (0, 1),
            tag=0,
            timeout_s=10.0,
            algorithm=AllReduceKind.HIERARCHICAL,
            wire=WireFormat(far=Int8Codec()),
        ).wait(timeout_s=10.0)
        worker.close(timeout_s=10.0)
        return worker.errors

    assert run_ranks(2, work) == [{}, {}]


def test_a_codec_needs_a_hierarchical_all_reduce():
    def work(transport: Transport) -> None:
        all_reduce(transport, np.ones(1), 0, tag=0, timeout_s=1.0, wire=WireFormat(far=Int8Codec()))

    with pytest.raises(
        ConfigError, match="far messages for a codec to encode, tree has none; set it to"
    ):
        run_ranks(1, work)


def test_an_all_reduce_whose_messages_flow_outlives_the_timeout():
    """Over an emulated link of 0.1 MB/s, 40 messages take two seconds, and none a timeout."""
    cluster = topo.load("homogeneous:hosts=2,delay_ms=0,bandwidth_gbps=0.0008")
    values = np.arange(25_000, dtype=np.float32)

    def work(transport: Transport) -> tuple[np.ndarray, float]:
        shaped = ShapedTransport(transport, cluster, devices=(0, 1))
        worker, start_s = AsyncAllReduce(shaped), time.monotonic()
        wire = WireFormat(chunk_bytes=5_000)
        reducing = worker.begin(values, (0, 1), tag=0, timeout_s=1.0, wire=wire)
        total = reducing.wait(timeout_s=1.0)
        worker.close(timeout_s=1.0)
        shaped.close()
        return total, time.monotonic() - start_s

    for total, seconds in run_ranks(2, work):
        np.testing.assert_array_equal(total, 2 * values)
        assert seconds > 1.0
