"""Devices, hosts, clusters: what they derive, and what they refuse."""

from collections.abc import Callable
from dataclasses import replace
from math import inf

import numpy as np
import pytest

from jaxpipe.topo import Cluster, Device, Host, Link, Precision, Trunk, gpu


def pair(**changes: object) -> Cluster:
    """Two devices, one way of 11 ms and one of 12."""
    cluster = Cluster(
        name="pair",
        devices=(
            Device(name="a:0", host="a", region="ohio"),
            Device(name="b:0", host="b", region="tokyo"),
        ),
        latency_s=np.array([[0, 0.011], [0.012, 0]]),
        bandwidth_bytes_per_s=np.array([[inf, 1e8], [2e8, inf]]),
    )
    return replace(cluster, **changes)  # pyright: ignore[reportArgumentType]


def test_a_link_has_a_direction():
    assert pair().link(0, 1) == Link(latency_s=0.011, bandwidth_bytes_per_s=1e8)
    assert pair().link(1, 0) == Link(latency_s=0.012, bandwidth_bytes_per_s=2e8)


def test_what_is_left_out_is_derived():
    cluster = pair()
    assert cluster.hosts == (Host(name="a", region="ohio"), Host(name="b", region="tokyo"))
    assert cluster.hosts[0].egress_bytes_per_s == inf
    assert cluster.alone_bytes_per_s is cluster.bandwidth_bytes_per_s
    assert cluster.host_of == (0, 1)
    assert cluster.regions == ("ohio", "tokyo")


def test_speed_is_the_effective_one_or_the_peak():
    device = Device(name="a:0", host="a", region="ohio", gpu=gpu("A40"))
    assert device.flops_per_s(Precision.FP32) == pytest.approx(37.4e12)
    measured = replace(device, effective_flops_per_s=5e12)
    assert measured.flops_per_s(Precision.FP32) == 5e12


def test_a_speed_that_nobody_knows_is_refused():
    with pytest.raises(ValueError, match="device 'a:0' has no known speed: give its hosts `gpu`"):
        pair().devices[0].flops_per_s(Precision.FP32)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: pair(devices=()), "`hosts` must have at least one device: add a host"),
        (lambda: pair(latency_s=np.zeros((3, 3))), r"`latency_s` is \(3, 3\), must be \(2, 2\)"),
        (lambda: pair(latency_s=np.full((2, 2), -1.0)), "`latency_s` must not be negative, is -1"),
        (lambda: pair(latency_s=np.full((2, 2), np.nan)), "`latency_s` must not be negative"),
        (
            lambda: pair(bandwidth_bytes_per_s=np.zeros((2, 2))),
            "`bandwidth_bytes_per_s` must be above 0, is 0",
        ),
        (
            lambda: pair(alone_bytes_per_s=np.zeros((2, 2))),
            "`alone_bytes_per_s` must be above 0, is 0",
        ),
        (
            lambda: pair(devices=(pair().devices[0],) * 2),
            "`devices` must have different names; 'a:0' occurs 2 times",
        ),
        (
            lambda: pair(hosts=(Host(name="a", region="ohio"),)),
            "device 'b:0' is on host 'b' in 'tokyo', which is missing in `hosts`",
        ),
        (
            lambda: Trunk(source="ohio", destination="ohio", bytes_per_s=1.0),
            "`trunks` must join two regions, not 'ohio' with itself",
        ),
        (
            lambda: Trunk(source="ohio", destination="tokyo", bytes_per_s=0.0),
            "`trunks` must have a bandwidth above 0 and finite, not 0",
        ),
        (
            lambda: pair(trunks=(Trunk(source="ohio", destination="mars", bytes_per_s=1.0),)),
            "`trunks` must name regions of `hosts`: no host is in 'mars'",
        ),
        (
            lambda: pair(trunks=(Trunk(source="ohio", destination="tokyo", bytes_per_s=1.0),) * 2),
            "`trunks` must have one entry for each direction",
        ),
        (lambda: Host(name="a", region="x", egress_bytes_per_s=0), "`egress_.*` must be above 0"),
        (
            lambda: Device(name="a:0", host="a", region="x", effective_flops_per_s=0),
            "`effective_flops_per_s` must be above 0 and finite, is 0",
        ),
    ],
)
def test_mistakes_are_refused(make: Callable[[], object], words: str):
    with pytest.raises(ValueError, match=words):
        make()
