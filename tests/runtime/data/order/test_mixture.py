"""Several sources are mixed by their weights, in an order that follows from seed and step alone."""

from dataclasses import replace
from itertools import accumulate
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxpipe.errors import DataError
from jaxpipe.runtime.data import (
    BytePairs,
    Labelled,
    Mixture,
    Source,
    byte_level_definition,
    mixture_of,
    prepare,
    prepare_labelled,
    sample,
)
from jaxpipe.runtime.data.order.position import Position
from jaxpipe.runtime.data.order.samples import Windows
from jaxpipe.runtime.data.order.source_order import BLOCK, assign, counts, shares_of

WEIGHTS = st.lists(st.floats(0.01, 100), min_size=1, max_size=5)
SEEDS = st.integers(0, 2**64 - 1)
few = settings(max_examples=30)


def mixed(*lengths: int, weights: tuple[float, ...], sequence: int = 3) -> Mixture:
    """Return sources whose tokens are their own positions, and differ between sources."""
    begins = [0, *accumulate(lengths)]
    splits = tuple(
        Windows(tokens=np.arange(begin, begin + length, dtype=np.uint32), sequence=sequence)
        for begin, length in zip(begins, lengths, strict=False)
    )
    return Mixture(train=splits, eval=splits, shares=shares_of(weights))


@few
@given(weights=WEIGHTS, seed=SEEDS, num_samples=st.integers(1, 2000))
def test_the_share_of_a_source_is_its_weight_within_the_bound(
    weights: list[float], seed: int, num_samples: int
) -> None:
    shares = shares_of(weights)
    for permuted, slack in ((None, 0), (seed, BLOCK / 4)):
        sources, _ = assign(np.arange(num_samples), shares, seed=permuted)
        for source, weight in enumerate(weights):
            expected = num_samples * weight / sum(weights)
            found = np.count_nonzero(sources == source)
            rounding = num_samples * len(weights) / 2**24
            assert abs(found - expected) < len(weights) + slack + rounding


@few
@given(weights=WEIGHTS, seed=SEEDS, blocks=st.integers(1, 20))
def test_every_source_is_read_without_gaps(weights: list[float], seed: int, blocks: int) -> None:
    sources, indices = assign(np.arange(blocks * BLOCK), shares_of(weights), seed=seed)
    assert counts(blocks * BLOCK, shares_of(weights)) == [
        np.count_nonzero(sources == source) for source in range(len(weights))
    ]
    for source in range(len(weights)):
        mine = np.sort(indices[sources == source])
        np.testing.assert_array_equal(mine, np.arange(len(mine)))


@few
@given(first=st.integers(0, 2**37), weights=WEIGHTS, seed=SEEDS)
def test_the_source_of_a_sample_depends_on_its_number_alone(
    first: int, weights: list[float], seed: int
) -> None:
    serials, shares = np.arange(first, first + 9), shares_of(weights)
    whole = assign(serials, shares, seed=seed)
    alone = [assign(serials[at : at + 1], shares, seed=seed) for at in range(9)]
    np.testing.assert_array_equal(whole, np.concatenate(alone, axis=1))


@few
@given(seed=SEEDS, step=st.integers(0, 10**6), data=st.data())
def test_any_step_and_any_rows_can_be_read_alone(seed: int, step: int, data: st.DataObject) -> None:
    mixture = mixed(40, 17, 90, weights=(3.0, 1.0, 2.0))
    large = mixture.train_samples(seed=seed, step=step, batch=12).rows
    small = [mixture.train_samples(seed=seed, step=3 * step + i, batch=4).rows for i in range(3)]
    np.testing.assert_array_equal(large, np.concatenate(small))
    start = data.draw(st.integers(0, 12))
    rows = range(start, data.draw(st.integers(start, 12)))
    part = mixture.train_samples(seed=seed, step=step, batch=12, rows=rows).rows
    np.testing.assert_array_equal(part, large[rows.start : rows.stop])


@few
@given(seed=SEEDS, step=st.integers(0, 10**6), masked=st.sets(st.integers(0, 2), min_size=1))
def test_rows_of_sources_without_masks_have_the_form_of_the_mixture(
    seed: int, step: int, masked: set[int]
) -> None:
    plain = mixed(40, 17, 90, weights=(3.0, 1.0, 2.0))
    splits = tuple(
        replace(split, counted=np.ones(len(split.tokens), np.uint8)) if n in masked else split
        for n, split in enumerate(plain.train)
        if isinstance(split, Windows)
    )
    mixture = replace(plain, train=splits, eval=splits, masked=True)
    whole = plain.train_samples(seed=seed, step=step, batch=12)
    for row in range(12):
        part = mixture.train_samples(seed=seed, step=step, batch=12, rows=range(row, row + 1))
        assert part.labels is not None
        np.testing.assert_array_equal(part.inputs, whole.inputs[row : row + 1])
        np.testing.assert_array_equal(part.targets, whole.targets[row : row + 1])


@settings(max_examples=8)
@given(seed=SEEDS, step=st.integers(0, 10**6))
def test_a_smaller_batch_begins_where_a_larger_one_has_ended(seed: int, step: int) -> None:
    mixture = mixed(40, 17, 90, weights=(3.0, 1.0, 2.0))
    large = mixture.train_samples(seed=seed, step=step, batch=12).rows
    position = Position(step=step, sample=12 * step)
    small = [
        mixture.train_samples(seed=seed, step=step + ahead, batch=4, position=position).rows
        for ahead in range(3)
    ]
    np.testing.assert_array_equal(large, np.concatenate(small))


@few
@given(seed=SEEDS)
def test_an_epoch_of_a_source_has_every_sample_once(seed: int) -> None:
    # Equal shares of windows: after as many steps both sources have ended an epoch.
    mixture = mixed(4 * BLOCK * 3, 2 * BLOCK * 3, weights=(2.0, 1.0))
    rows = mixture.train_samples(seed=seed, step=0, batch=6 * BLOCK).rows
    targets = np.sort(rows[:, 1:].ravel())
    np.testing.assert_array_equal(targets, np.arange(6 * BLOCK * 3))


def test_one_source_is_read_as_it_is_without_a_mixture() -> None:
    mixture = mixed(50, weights=(7.0,))
    expected = sample(np.arange(50), seed=3, step=2, batch=5, sequence=3)
    found = mixture.train_samples(seed=3, step=2, batch=5)
    np.testing.assert_array_equal(found.rows, expected)
    np.testing.assert_array_equal(found.inputs[:, 1:], found.targets[:, :-1])


def test_equal_sources_are_not_read_in_the_same_order() -> None:
    mixture = mixed(900, 900, weights=(1.0, 1.0))
    rows = mixture.train_samples(seed=0, step=0, batch=64).rows
    first, second = (np.sort(rows[rows[:, 0] // 900 == s][:, 0] % 900) for s in (0, 1))
    assert first.tolist() != second.tolist()


@few
@given(
    lengths=st.tuples(st.integers(4, 60), st.integers(4, 60)),
    weights=st.tuples(st.floats(0.1, 9), st.floats(0.1, 9)),
    batch=st.integers(1, 6),
)
def test_held_out_samples_are_all_different_and_as_many_as_the_shares_allow(
    lengths: tuple[int, int], weights: tuple[float, float], batch: int
) -> None:
    mixture = mixed(*lengths, weights=weights)
    held = [split.num_samples for split in mixture.eval]
    try:
        num_batches = mixture.num_eval_batches(batch=batch)
    except DataError:
        num_batches = 0
    read = [mixture.eval_samples(index=index, batch=batch).rows for index in range(num_batches)]
    starts = [row[0] for rows in read for row in rows]
    assert len(set(starts)) == len(starts) == num_batches * batch
    needs = counts((num_batches + 1) * batch, mixture.shares)
    assert any(need > has for need, has in zip(needs, held, strict=True))


def test_sources_must_be_text_of_the_same_tokens(tmp_path: Path) -> None:
    for name in "ab":
        (tmp_path / name).write_text("some words of some text. " * 40)
    source = Source(path=tmp_path / "a")
    text = prepare(source, tmp_path / "text")
    labelled = prepare_labelled(
        Labelled(
            inputs=np.zeros((20, 3), np.uint8),
            labels=(np.arange(20) % 2).astype(np.uint8),
            classes=("even", "odd"),
            source="numbers",
        ),
        tmp_path / "labelled",
    )
    with pytest.raises(DataError, match="text without labels, numbers has labels"):
        mixture_of([text, labelled], (1.0, 1.0), sequence=3)


def test_bytes_with_and_without_a_definition_are_mixed(tmp_path: Path) -> None:
    # A dataset that was prepared with the tokenizer.json of a run on bytes, and one of bytes.
    (tmp_path / "text").write_text("some words of some text. " * 40)
    source = Source(path=tmp_path / "text")
    plain = prepare(source, tmp_path / "plain")
    tokenizer = BytePairs(byte_level_definition())
    defined = prepare(source, tmp_path / "defined", tokenizer=tokenizer)
    assert len(mixture_of([plain, defined], (1.0, 1.0), sequence=8).train) == 2
