"""Cluster files that are written are read back as the same cluster."""

from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest
from hypothesis import given

from jaxpipe.topo import Cluster, Device, load, names
from jaxpipe.topo.write import cluster_toml
from tests.topo.strategies import clusters


def written_and_read(cluster: Cluster) -> Cluster:
    with TemporaryDirectory() as folder:
        path = Path(folder) / "cluster.toml"
        path.write_text(cluster_toml(cluster, about="two\nlines"))
        return load(str(path))


def check_same(a: Cluster, b: Cluster) -> None:
    assert (a.devices, a.hosts, a.restart_bytes) == (b.devices, b.hosts, b.restart_bytes)
    assert a.trunks == b.trunks
    for field in ("latency_s", "bandwidth_bytes_per_s", "alone_bytes_per_s"):
        assert np.array_equal(getattr(a, field), getattr(b, field))


@given(cluster=clusters())
def test_any_cluster_round_trips(cluster: Cluster):
    check_same(written_and_read(cluster), cluster)


@pytest.mark.parametrize("name", names())
def test_the_catalogue_round_trips(name: str):
    cluster = load(name)
    read = written_and_read(cluster)
    check_same(read, cluster)
    assert read.name == name


def test_effective_speed_round_trips():
    cluster = load("two-region")
    fast = tuple(replace(device, effective_flops_per_s=3e12) for device in cluster.devices)
    check_same(written_and_read(replace(cluster, devices=fast)), replace(cluster, devices=fast))


def test_relative_speed_round_trips():
    cluster = load("two-region")
    slow = tuple(
        replace(device, gpu=None, memory_bytes=None, watts=None, relative_speed=0.5)
        for device in cluster.devices
    )
    check_same(written_and_read(replace(cluster, devices=slow)), replace(cluster, devices=slow))


def test_connections_that_start_slowly_round_trip():
    cluster = replace(load("two-region"), restart_bytes=14480.0)
    check_same(written_and_read(cluster), cluster)


@pytest.mark.parametrize("name", ["two-region", "homogeneous:gpu=A40"])
def test_described_devices_round_trip(name: str):
    cluster = load(name)
    given = {"memory_bytes": 24 * 2**30, "peak_flops_per_s": 82e12}
    devices = tuple(replace(device, **given) for device in cluster.devices)
    described = replace(cluster, name="described", devices=devices)
    check_same(written_and_read(described), described)


def test_hosts_out_of_order_cannot_be_said():
    cluster = load("two-region")
    swapped = replace(cluster, devices=cluster.devices[::-1])
    with pytest.raises(ValueError, match="lists devices host by host, and these stand in another"):
        cluster_toml(swapped)


def test_unlike_devices_of_a_host_cannot_be_said():
    cluster = load("homogeneous:hosts=1,devices=2")
    plain = Device(name="here-0:1", host="here-0", region="here")
    mixed = replace(cluster, devices=(cluster.devices[0], plain))
    with pytest.raises(ValueError, match="host 'here-0' has unlike devices"):
        cluster_toml(mixed)
