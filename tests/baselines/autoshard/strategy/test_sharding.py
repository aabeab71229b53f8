import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxpipe.baselines.autoshard.strategy import (
    Axis,
    MeshShape,
    Sharding,
    parse_sharding,
    partition_spec,
)
from jaxpipe.errors import PlanError


@st.composite
def shardings(draw: st.DrawFn) -> Sharding:
    dims: list[tuple[Axis, ...]] = [()] * draw(st.integers(0, 4))
    for axis in draw(st.permutations(list(Axis))):
        if dims and draw(st.booleans()):
            dims[draw(st.integers(0, len(dims) - 1))] += (axis,)
    return Sharding(tuple(dims))


@given(sharding=shardings())
def test_text_and_specification_read_back(sharding: Sharding) -> None:
    assert parse_sharding(str(sharding)) == sharding
    spec = partition_spec(sharding)
    labels = [() if dim is None else (dim,) if isinstance(dim, str) else dim for dim in spec]
    assert labels == [tuple(axis.label for axis in dim) for dim in sharding.dims]


@given(sharding=shardings(), dp=st.integers(1, 3), op=st.integers(1, 4))
def test_pieces_make_up_the_array(sharding: Sharding, dp: int, op: int) -> None:
    mesh = MeshShape(dp=dp, op=op)
    shape = tuple(36 * 4 for _ in sharding.dims)
    assert sharding.fits(shape, mesh)
    pieces = sharding.local_bytes(shape, 4, mesh) * mesh.size(sharding.axes)
    assert pieces == 4 * (36 * 4) ** len(shape)


@pytest.mark.parametrize("text", ["", "S", "S2", "RX", "s0", "R-"])
def test_other_texts_are_refused(text: str) -> None:
    with pytest.raises(PlanError, match=r"must be R, S0, S1, S01 or S10.*write S0R"):
        parse_sharding(text)


def test_an_axis_splits_one_dim() -> None:
    with pytest.raises(PlanError, match=r"`sharding` \(S0S0\) has an axis twice"):
        parse_sharding("S0S0")
