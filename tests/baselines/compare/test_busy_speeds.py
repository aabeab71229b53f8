"""Measured links reproduce the times of their all-reduces, for every mesh of the ranks."""

import jax
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxpipe.baselines.autoshard.strategy import (
    Axis,
    Collective,
    CollectiveKind,
    MeshShape,
    collective_s,
)
from jaxpipe.baselines.compare.busy_speeds import (
    BusySpeeds,
    factorisations,
    groups_along,
    link_of,
    measure_busy_speeds,
)
from jaxpipe.comm import Transport, run_ranks


@given(
    size=st.integers(2, 9),
    small_s=st.floats(1e-6, 1.0),
    more_s=st.floats(1e-6, 1.0),
    num_bytes=st.integers(1, 10**9),
)
def test_a_link_costs_what_its_all_reduces_took(
    size: int, small_s: float, more_s: float, num_bytes: int
):
    large_s = small_s + more_s
    link = link_of(small_s=small_s, large_s=large_s, num_bytes=num_bytes, size=size)
    mesh = MeshShape(dp=1, op=size, op_link=link)

    def cost_s(number: int) -> float:
        axes, kind = (Axis.OP,), CollectiveKind.ALL_REDUCE
        return collective_s(Collective(kind=kind, num_bytes=number, axes=axes), mesh)

    assert cost_s(0) == pytest.approx(small_s)
    assert cost_s(num_bytes) == pytest.approx(large_s)


def test_in_noise_all_of_the_time_counts_for_the_bytes():
    link = link_of(small_s=0.2, large_s=0.1, num_bytes=100.0, size=2)
    assert link.bandwidth_bytes_per_s == pytest.approx(1000.0)


@given(num_ranks=st.integers(1, 64))
def test_every_rank_is_in_one_group_of_each_axis(num_ranks: int):
    for mesh in factorisations(num_ranks):
        assert mesh.num_devices == num_ranks
        for axis in Axis:
            groups = groups_along(mesh, axis)
            assert {len(group) for group in groups} == {mesh.sizes[axis]}
            assert sorted(rank for group in groups for rank in group) == list(range(num_ranks))


def test_a_rank_that_is_alone_has_a_speed_and_no_links():
    def work(transport: Transport) -> BusySpeeds:
        return measure_busy_speeds(transport, jax.devices()[:1], timeout_s=10.0)

    (speeds,) = run_ranks(1, work)
    assert speeds.flops_per_s > 1e6
    assert speeds.meshes == (MeshShape(dp=1, op=1),)
