"""Clusters of any shape: uneven hosts, one-way links, shared NICs and trunks."""

import numpy as np
from hypothesis import strategies as st

from jaxpipe.topo import Cluster, Device, Host, Trunk, gpu

_SPEEDS = st.floats(1e6, 1e10)
_NIC_GBPS = st.none() | st.integers(1, 100)


@st.composite
def hosts_of_ranks(draw: st.DrawFn) -> tuple[int, ...]:
    """The host of each rank, in any order, as an MPI may number them."""
    return tuple(draw(st.lists(st.integers(0, 5), min_size=1, max_size=12)))


@st.composite
def clusters(draw: st.DrawFn) -> Cluster:
    counts = draw(st.lists(st.integers(1, 3), min_size=1, max_size=5))
    regions = [draw(st.sampled_from(("ohio", "tokyo"))) for _ in counts]
    kinds = [draw(st.sampled_from((None, gpu("A40"), gpu("H100")))) for _ in counts]
    nics = [draw(_NIC_GBPS) for _ in counts]
    hosts = tuple(
        Host(
            name=f"host{i}",
            region=region,
            egress_bytes_per_s=np.inf if nic is None else nic * 1.25e8,
            burst_bytes=0 if nic is None else draw(st.integers(0, 60)) * 2**20,
        )
        for i, (region, nic) in enumerate(zip(regions, nics, strict=True))
    )
    devices = tuple(
        Device(name=f"host{i}:{slot}", host=f"host{i}", region=regions[i], gpu=kinds[i])
        for i, count in enumerate(counts)
        for slot in range(count)
    )
    ways = [("ohio", "tokyo"), ("tokyo", "ohio")] if len(set(regions)) == 2 else []
    return Cluster(
        name="drawn",
        devices=devices,
        hosts=hosts,
        trunks=tuple(
            Trunk(
                source=source,
                destination=destination,
                bytes_per_s=draw(st.integers(1, 100)) * 1.25e8,
            )
            for source, destination in ways
            if draw(st.booleans())
        ),
        latency_s=draw(_matrices(len(devices), st.floats(0, 0.3), diagonal=0.0)),
        bandwidth_bytes_per_s=draw(_matrices(len(devices), _SPEEDS, diagonal=np.inf)),
    )


@st.composite
def _matrices(
    draw: st.DrawFn, num: int, values: st.SearchStrategy[float], *, diagonal: float
) -> np.ndarray:
    matrix = np.array([[draw(values) for _ in range(num)] for _ in range(num)])
    np.fill_diagonal(matrix, diagonal)
    return matrix
