"""Batches follow from seed and step alone, and see all tokens equally often."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxpipe.errors import DataError
from jaxpipe.runtime.data import sample
from jaxpipe.runtime.data.order.samples import Windows

SEQUENCES = st.integers(1, 9)


@st.composite
def corpora(draw: st.DrawFn) -> tuple[np.ndarray, int]:
    """Draw tokens that are their own positions, and a sequence that fits them."""
    sequence = draw(SEQUENCES)
    return np.arange(draw(st.integers(sequence + 1, 80)), dtype=np.uint16), sequence


@given(corpus=corpora(), seed=st.integers(0, 2**64 - 1), epoch=st.integers(0, 3))
def test_an_epoch_targets_no_token_twice_and_leaves_out_less_than_a_window(
    corpus: tuple[np.ndarray, int], seed: int, epoch: int
) -> None:
    tokens, sequence = corpus
    num_windows = len(tokens) // sequence
    rows = sample(tokens, seed=seed, step=epoch, batch=num_windows, sequence=sequence)
    targets = rows[:, 1:].ravel()
    assert len(set(targets.tolist())) == len(targets) > len(tokens) - sequence


@given(corpus=corpora(), seed=st.integers(0, 99), step=st.integers(0, 10**9))
def test_rows_are_consecutive_on_the_ring(
    corpus: tuple[np.ndarray, int], seed: int, step: int
) -> None:
    tokens, sequence = corpus
    rows = sample(tokens, seed=seed, step=step, batch=3, sequence=sequence)
    assert rows.dtype == np.int32
    assert (np.diff(rows, axis=1) % len(tokens) == 1 % len(tokens)).all()


@given(corpus=corpora(), batch=st.integers(1, 12), data=st.data())
def test_some_rows_are_the_same_as_in_the_whole_batch(
    corpus: tuple[np.ndarray, int], batch: int, data: st.DataObject
) -> None:
    tokens, sequence = corpus
    start = data.draw(st.integers(0, batch))
    rows = range(start, data.draw(st.integers(start, batch)))
    whole = sample(tokens, seed=1, step=5, batch=batch, sequence=sequence)
    part = sample(tokens, seed=1, step=5, batch=batch, sequence=sequence, rows=rows)
    np.testing.assert_array_equal(part, whole[rows.start : rows.stop])


def test_the_stream_of_windows_does_not_depend_on_how_steps_batch_it() -> None:
    tokens = np.arange(50, dtype=np.uint8)
    large = sample(tokens, seed=3, step=1, batch=6, sequence=4)
    small = [sample(tokens, seed=3, step=step, batch=2, sequence=4) for step in (3, 4, 5)]
    np.testing.assert_array_equal(large, np.concatenate(small))


def test_all_tokens_are_seen_about_equally_often() -> None:
    tokens = np.arange(103, dtype=np.uint8)
    rows = sample(tokens, seed=0, step=0, batch=400 * (103 // 10), sequence=10)
    counts = np.bincount(rows[:, 1:].ravel(), minlength=103)
    assert counts.sum() == 400 * 100
    assert counts.min() > 370
    assert counts.max() <= 400


@pytest.mark.parametrize(("seed", "step"), [(1, 0), (0, 1), (2**64 - 1, 0)])
def test_another_seed_or_step_is_another_batch(seed: int, step: int) -> None:
    tokens = np.arange(10_000, dtype=np.uint16)
    first = sample(tokens, seed=0, step=0, batch=4, sequence=8)
    other = sample(tokens, seed=seed, step=step, batch=4, sequence=8)
    assert not (first == other).any()


def test_epochs_differ_in_order_and_shift() -> None:
    tokens = np.arange(40, dtype=np.uint8)
    epochs = [sample(tokens, seed=0, step=step, batch=10, sequence=4) for step in range(4)]
    starts = [epoch[:, 0].tolist() for epoch in epochs]
    assert len({tuple(start) for start in starts}) == 4
    assert len({start[0] % 4 for start in starts}) > 1


@given(corpus=corpora())
def test_eval_windows_come_in_order_and_target_no_token_twice(
    corpus: tuple[np.ndarray, int],
) -> None:
    tokens, sequence = corpus
    windows = Windows(tokens=tokens, sequence=sequence)
    targets = windows.read(np.arange(windows.num_samples)).targets
    np.testing.assert_array_equal(targets.ravel(), 1 + np.arange(targets.size))
    assert len(tokens) - 1 - targets.size < sequence


@pytest.mark.parametrize("num_tokens", [0, 1, 8])
def test_too_few_tokens(num_tokens: int) -> None:
    tokens = np.zeros(num_tokens, np.uint8)
    message = f"`train.sequence` must be less than the {num_tokens} tokens .* not 8; lower it"
    with pytest.raises(DataError, match=message):
        sample(tokens, seed=0, step=0, batch=1, sequence=8)
    with pytest.raises(DataError, match=message):
        Windows(tokens=tokens, sequence=8)
