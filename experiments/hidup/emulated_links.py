"""Links on which collectives are about as fast as a published profile says.

A profile has one speed for each kind of collective; a network has one bandwidth. Each kind implies
one, by what it sends through a link if rings, and pairwise all-to-alls, run on it::

    tensor of S bytes, n devices, g on a host   all-gather, reduce-scatter  S (n - 1) / n
                                                all-reduce                  2 S (n - 1) / n
                                                all-to-all                  g S (n - g) / n / n

Their geometric mean is the bandwidth of each host's NIC (of several hosts), or of each link.
"""

from dataclasses import replace
from statistics import geometric_mean

import numpy as np

from experiments.hidup.workloads import Bar
from jaxpipe.baselines.autoshard.duplex import CollectiveProfile
from jaxpipe.collective.kinds import CollectiveKind
from jaxpipe.topo import Cluster, Device
from jaxpipe.topo.cluster import Host

_SPEEDS = {
    CollectiveKind.ALL_GATHER: "all_gather",
    CollectiveKind.ALL_REDUCE: "all_reduce",
    CollectiveKind.REDUCE_SCATTER: "reduce_scatter",
    CollectiveKind.ALL_TO_ALL: "all_to_all",
}
_NVLINK_BYTES_PER_S = 20e9
"""Of a link between two GPUs of a host: an order of magnitude above the NICs."""


def devices_of_host(bar: Bar, num_devices: int) -> int:
    """Return the devices of each host: figure 6 has eight hosts, figure 8 has two.

    Figure 7 has one, and its devices send through ports of their own: each is a host here.
    """
    if bar.figure == 7:
        return 1
    return max(1, num_devices // (8 if bar.figure == 6 else 2))


def sent_part(kind: CollectiveKind, *, num_devices: int, on_host: int) -> float:
    """Return the part of a whole tensor that passes the NIC of a host.

    >>> sent_part(CollectiveKind.ALL_TO_ALL, num_devices=8, on_host=4)
    0.25
    """
    n = num_devices
    if kind is CollectiveKind.ALL_TO_ALL:
        return on_host * (n - on_host) / n**2
    return (2 if kind is CollectiveKind.ALL_REDUCE else 1) * (n - 1) / n


def nic_bytes_per_s(profile: CollectiveProfile, *, on_host: int) -> float:
    """Return the bandwidth that the four speeds of a profile imply, their geometric mean."""
    return geometric_mean(
        getattr(profile, name) * sent_part(kind, num_devices=profile.devices, on_host=on_host)
        for kind, name in _SPEEDS.items()
    )


def profile_of_links(profile: CollectiveProfile, *, on_host: int) -> CollectiveProfile:
    """Return what the emulated links make of a profile: one bandwidth, all kinds."""
    bandwidth = nic_bytes_per_s(profile, on_host=on_host)
    speeds = {
        name: bandwidth / sent_part(kind, num_devices=profile.devices, on_host=on_host)
        for kind, name in _SPEEDS.items()
    }
    return replace(profile, source=f"links like {profile.source}", **speeds)


def cluster_of(profile: CollectiveProfile, *, on_host: int) -> Cluster:
    """Return hosts whose NICs have this bandwidth; a ring has the latency of the profile."""
    n, bandwidth = profile.devices, nic_bytes_per_s(profile, on_host=on_host)
    devices = tuple(
        Device(name=f"gpu{each}", host=f"host{each // on_host}", region="here") for each in range(n)
    )
    hosts = tuple(
        Host(
            name=f"host{each}",
            region="here",
            egress_bytes_per_s=bandwidth,
            ingress_bytes_per_s=bandwidth,
        )
        for each in range(n // on_host)
    )
    numbers = np.arange(n) // on_host
    is_near = numbers[:, None] == numbers[None, :]
    bandwidths = np.where(is_near, _NVLINK_BYTES_PER_S, bandwidth)
    np.fill_diagonal(bandwidths, np.inf)
    return Cluster(
        name=f"{n}-gpus",
        devices=devices,
        latency_s=profile.latency_s / (n - 1) * (1 - np.eye(n)),
        bandwidth_bytes_per_s=bandwidths,
        hosts=hosts,
    )
