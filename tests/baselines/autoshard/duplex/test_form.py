"""Conversions against NumPy: pieces of each device before and after, and their conjugates."""

from functools import reduce

import numpy as np
import pytest

from jaxpipe.baselines.autoshard.duplex import (
    FULL,
    PARTIAL,
    Form,
    backward_conversion,
    conversion,
    sharded,
)
from jaxpipe.baselines.autoshard.duplex.form import dual
from jaxpipe.collective.kinds import CollectiveKind
from jaxpipe.errors import PlanError

Pieces = list[np.ndarray]
FORMS = (FULL, PARTIAL, sharded(0), sharded(1))
CONVERSIONS = [(a, b) for a in FORMS for b in FORMS if b not in (a, PARTIAL)]


def whole(pieces: Pieces, form: Form) -> np.ndarray:
    if form == PARTIAL:
        return reduce(np.add, pieces)
    if form == FULL:
        for piece in pieces:
            np.testing.assert_array_equal(piece, pieces[0])
        return pieces[0]
    return np.concatenate(pieces, axis=form.dim)


def executed(kind: CollectiveKind | None, pieces: Pieces, *, source: Form, target: Form) -> Pieces:
    """Run a collective on pieces, as its definition says."""
    size = len(pieces)
    if kind is CollectiveKind.ALL_REDUCE:
        return [reduce(np.add, pieces)] * size
    if kind is CollectiveKind.ALL_GATHER:
        return [np.concatenate(pieces, axis=source.dim)] * size
    if kind is CollectiveKind.REDUCE_SCATTER:
        return np.split(reduce(np.add, pieces), size, axis=target.dim)
    if kind is CollectiveKind.ALL_TO_ALL:
        sent = [np.split(piece, size, axis=target.dim) for piece in pieces]
        return [
            np.concatenate([sent[other][own] for other in range(size)], axis=source.dim)
            for own in range(size)
        ]
    if source == FULL:  # a slice
        return [np.split(piece, size, axis=target.dim)[own] for own, piece in enumerate(pieces)]
    padded = []
    for own, piece in enumerate(pieces):  # zeros around the own part
        parts = [np.zeros_like(piece)] * size
        padded.append(np.concatenate([*parts[:own], piece, *parts[own + 1 :]], axis=source.dim))
    return padded


def pieces_of(array: np.ndarray, form: Form, size: int, random: np.random.Generator) -> Pieces:
    if form == FULL:
        return [array] * size
    if form == PARTIAL:
        some = [random.integers(-5, 5, array.shape) for _ in range(size - 1)]
        return [*some, array - sum(some)]
    return np.split(array, size, axis=form.dim)


@pytest.mark.parametrize("size", [1, 2, 4, 8])
@pytest.mark.parametrize(("source", "target"), CONVERSIONS, ids=str)
def test_conversions_keep_the_tensor_and_their_conjugates_its_gradient(
    size: int, source: Form, target: Form
) -> None:
    random = np.random.default_rng(size)
    array, gradient = (random.integers(-9, 9, (8, 16)) for _ in range(2))
    before = pieces_of(array, source, size, random)
    after = executed(conversion(source, target), before, source=source, target=target)
    np.testing.assert_array_equal(whole(after, target), array)

    given = pieces_of(gradient, dual(target), size, random)
    kind = backward_conversion(source, target)
    back = executed(kind, given, source=dual(target), target=dual(source))
    np.testing.assert_array_equal(whole(back, dual(source)), gradient)


def test_published_table_of_collectives() -> None:
    table = {
        (source, target): (conversion(source, target), backward_conversion(source, target))
        for source, target in CONVERSIONS
    }
    gather, scatter = CollectiveKind.ALL_GATHER, CollectiveKind.REDUCE_SCATTER
    reduce_, exchange = CollectiveKind.ALL_REDUCE, CollectiveKind.ALL_TO_ALL
    assert table[sharded(0), FULL] == (gather, scatter)
    assert table[sharded(0), sharded(1)] == (exchange, exchange)
    assert table[PARTIAL, FULL] == (reduce_, reduce_)
    assert table[PARTIAL, sharded(1)] == (scatter, gather)
    assert table[FULL, sharded(0)] == (None, None)


def test_nothing_becomes_partial() -> None:
    with pytest.raises(PlanError, match="cannot convert F to P: no conversion makes"):
        conversion(FULL, PARTIAL)


def test_a_form_is_sharded_or_partial() -> None:
    with pytest.raises(PlanError, match=r"`dim` .1. and `partial` exclude each other"):
        Form(dim=1, partial=True)
