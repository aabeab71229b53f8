import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxpipe import topo
from jaxpipe.baselines.autoshard.strategy import (
    Axis,
    AxisLink,
    Collective,
    CollectiveKind,
    MeshShape,
    collective_s,
    mesh_on,
)
from jaxpipe.errors import PlanError
from jaxpipe.plan.cost import ring_s, uniform_links

OP = (Axis.OP,)


@given(
    size=st.integers(1, 9),
    num_bytes=st.integers(0, 10**9),
    latency_s=st.floats(0, 1),
    bandwidth=st.floats(1, 1e12),
)
def test_an_all_reduce_is_the_planners_ring_and_twice_its_half(
    size: int, num_bytes: int, latency_s: float, bandwidth: float
) -> None:
    link = AxisLink(latency_s=latency_s, bandwidth_bytes_per_s=bandwidth)
    mesh = MeshShape(dp=1, op=size, op_link=link)
    seconds = {
        kind: collective_s(Collective(kind=kind, num_bytes=num_bytes, axes=OP), mesh)
        for kind in CollectiveKind
    }
    links = uniform_links(size, latency_s=latency_s, bandwidth_bytes_per_s=bandwidth)
    assert seconds[CollectiveKind.ALL_REDUCE] == pytest.approx(ring_s(links, num_bytes=num_bytes))
    for kind in set(CollectiveKind) - {CollectiveKind.ALL_REDUCE}:
        assert 2 * seconds[kind] == pytest.approx(seconds[CollectiveKind.ALL_REDUCE])


def test_a_ring_along_both_axes_passes_the_slowest_link() -> None:
    slow = AxisLink(latency_s=1e-3, bandwidth_bytes_per_s=1e9)
    fast = AxisLink(latency_s=1e-6, bandwidth_bytes_per_s=1e11)
    assert MeshShape(dp=2, op=2, dp_link=slow, op_link=fast).link((Axis.DP, Axis.OP)) == slow
    assert MeshShape(dp=1, op=2, dp_link=slow, op_link=fast).link((Axis.DP, Axis.OP)) == fast


def test_a_mesh_takes_its_links_from_a_cluster() -> None:
    cluster = topo.load("two-region")
    mesh = mesh_on(cluster, dp=2, op=2)
    assert mesh.op_link.latency_s < mesh.dp_link.latency_s
    with pytest.raises(PlanError, match=r"`dp` \(5\) x `op` \(9\) must be at most .*lower one"):
        mesh_on(cluster, dp=5, op=9)


@pytest.mark.parametrize("sizes", [(0, 1), (1, 0), (-1, 2)])
def test_an_axis_without_devices_is_refused(sizes: tuple[int, int]) -> None:
    with pytest.raises(PlanError, match="must be at least 1"):
        MeshShape(dp=sizes[0], op=sizes[1])
