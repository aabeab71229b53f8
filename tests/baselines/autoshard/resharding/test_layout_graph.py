"""Reshardings, against what each device holds."""

from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxpipe.baselines.autoshard.graph import ArrayType
from jaxpipe.baselines.autoshard.resharding import LayoutBook, shardings_of
from jaxpipe.baselines.autoshard.strategy import (
    AxisLink,
    CollectiveKind,
    MeshShape,
    Sharding,
    collective_s,
    parse_sharding,
)

LINK = AxisLink(latency_s=1e-6, bandwidth_bytes_per_s=1e9)
LAUNCH_S = 5e-6


def book(dp: int, op: int) -> LayoutBook:
    return LayoutBook(mesh=MeshShape(dp=dp, op=op, dp_link=LINK, op_link=LINK), launch_s=LAUNCH_S)


def piece(sharding: Sharding, shape: tuple[int, ...], mesh: MeshShape, place: tuple[int, int]):
    """Return the indices of the elements that the device at a place holds."""
    array = np.arange(int(np.prod(shape))).reshape(shape)
    for dim, axes in enumerate(sharding.dims):
        for axis in axes:
            array = np.split(array, mesh.sizes[axis], axis=dim)[place[axis]]
    return frozenset(array.ravel().tolist())


@pytest.mark.parametrize(("dp", "op"), [(1, 1), (1, 4), (2, 2), (2, 3)])
def test_free_is_what_every_device_has_already(dp: int, op: int) -> None:
    shape = (12, 6)
    layouts = book(dp, op).of(ArrayType(shape=shape, dtype="float32", itemsize=4))
    places = list(product(range(dp), range(op)))
    for (i, a), (j, b) in product(enumerate(layouts.shardings), repeat=2):
        there = all(
            piece(b, shape, layouts.mesh, place) <= piece(a, shape, layouts.mesh, place)
            for place in places
        )
        assert (layouts.wire_s[i, j] == 0) == there, (str(a), str(b))


@given(
    dp=st.integers(1, 3),
    op=st.integers(1, 3),
    shape=st.lists(st.sampled_from([1, 6, 36]), max_size=3).map(tuple),
)
def test_a_path_takes_what_is_said_and_no_detour_less(
    dp: int, op: int, shape: tuple[int, ...]
) -> None:
    layouts = book(dp, op).of(ArrayType(shape=shape, dtype="float32", itemsize=4))
    assert layouts.shardings == shardings_of(shape, layouts.mesh)
    total = layouts.wire_s + layouts.latency_s
    for i, j in product(range(len(total)), repeat=2):
        listed = [
            collective_s(each, layouts.mesh, launch_s=LAUNCH_S) for each in layouts.path(i, j)
        ]
        assert sum(listed) == pytest.approx(total[i, j])
    detours = (total[:, :, None] + total[None, :, :]).min(axis=1)
    assert (total <= detours + 1e-12).all()


@pytest.mark.parametrize(
    ("source", "target", "kinds"),
    [
        ("S1R", "RR", [CollectiveKind.ALL_GATHER]),
        ("S01R", "RR", [CollectiveKind.ALL_GATHER]),
        ("RR", "S01R", []),
        ("S0R", "RS0", [CollectiveKind.ALL_TO_ALL]),
        ("S01R", "S0S1", [CollectiveKind.ALL_TO_ALL]),
    ],
)
def test_steps_are_those_of_alpa(source: str, target: str, kinds: list[CollectiveKind]) -> None:
    layouts = book(2, 2).of(ArrayType(shape=(8, 8), dtype="float32", itemsize=4))
    ends = (layouts.number[parse_sharding(each)] for each in (source, target))
    assert [each.kind for each in layouts.path(*ends)] == kinds
