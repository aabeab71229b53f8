"""Packed samples: whole documents in a row, each token but their first a target once."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxpipe.runtime.data.order.packing import PackedRows, packed_rows, packed_spans
from jaxpipe.runtime.data.order.samples import IGNORED

few = settings(max_examples=30)


@st.composite
def corpora(draw: st.DrawFn) -> tuple[PackedRows, list[int]]:
    """Draw documents whose tokens are their own positions, from 1 on, and pack them."""
    sequence = draw(st.integers(1, 12))
    lengths = draw(st.lists(st.integers(1, 30), min_size=1, max_size=12))
    lengths[0] = max(lengths[0], sequence + 1)
    ends = np.cumsum(lengths)
    tokens = np.arange(1, ends[-1] + 1, dtype=np.uint32)
    return packed_rows(tokens, ends.astype(np.uint64), sequence=sequence), lengths


@few
@given(corpus=corpora())
def test_every_token_but_the_first_of_a_document_is_a_target_once(
    corpus: tuple[PackedRows, list[int]],
) -> None:
    rows, lengths = corpus
    read = rows.read(np.arange(rows.num_samples))
    targets = read.targets[read.targets != IGNORED]
    begins = np.cumsum([0, *lengths[:-1]]) + 1
    expected = np.setdiff1d(np.arange(1, sum(lengths) + 1), begins)
    np.testing.assert_array_equal(np.sort(targets), expected)


@few
@given(corpus=corpora())
def test_a_target_follows_its_input_within_one_segment(
    corpus: tuple[PackedRows, list[int]],
) -> None:
    rows, lengths = corpus
    read = rows.read(np.arange(rows.num_samples))
    assert read.segments is not None
    document = np.repeat(np.arange(len(lengths)), lengths)
    for inputs, targets, segments in zip(read.inputs, read.targets, read.segments, strict=True):
        counted = targets != IGNORED
        np.testing.assert_array_equal(targets[counted], inputs[counted] + 1)
        real = inputs > 0
        # Equal segments are equal documents, and the other way around.
        _, as_documents = np.unique(document[inputs[real] - 1], return_inverse=True)
        np.testing.assert_array_equal(segments[real], as_documents)
        assert not counted[~real].any()
        assert (np.diff(segments) >= 0).all()


@few
@given(corpus=corpora())
def test_a_document_that_fits_is_in_one_row(corpus: tuple[PackedRows, list[int]]) -> None:
    rows, lengths = corpus
    edges = set(rows.spans.ravel().tolist())
    ends = np.cumsum(lengths)
    for length, end in zip(lengths, ends.tolist(), strict=True):
        follows_a_cut = any(start == end - length - 1 for start, _ in rows.spans.tolist())
        if length <= rows.sequence + 1 and not follows_a_cut:
            assert not edges.intersection(range(end - length + 1, end))


@few
@given(corpus=corpora(), seed=st.integers(0, 2**64 - 1), epoch=st.integers(0, 3))
def test_an_epoch_has_every_row_once(
    corpus: tuple[PackedRows, list[int]], seed: int, epoch: int
) -> None:
    rows, _ = corpus
    serials = np.arange(rows.num_samples) + epoch * rows.num_samples
    drawn = rows.draw(serials, seed=seed).rows
    read = rows.read(np.arange(rows.num_samples)).rows
    assert sorted(map(tuple, drawn.tolist())) == sorted(map(tuple, read.tolist()))


@pytest.mark.parametrize(
    ("ends", "spans"),
    [
        ([7], [[0, 7]]),
        ([8], [[0, 7], [6, 8]]),
        ([1, 2, 3], [[0, 3]]),
        ([3, 10], [[0, 3], [3, 10]]),
        ([14, 15], [[0, 7], [6, 13], [12, 15]]),
    ],
)
def test_rows_are_as_full_as_whole_documents_allow(ends: list[int], spans: list) -> None:
    assert packed_spans(np.array(ends), sequence=6).tolist() == spans


def test_prompts_do_not_count_in_packed_rows() -> None:
    counted = np.array([0, 0, 1, 1, 0, 1], np.uint8)
    rows = packed_rows(np.arange(6, dtype=np.uint8), np.array([4, 6]), sequence=5, counted=counted)
    assert rows.read(np.array([0])).targets.tolist() == [[IGNORED, 2, 3, IGNORED, 5]]
