"""Seconds of the all-reduces of a fleet in closed form: hosts, then regions, then all of them.

The all-reduce is the hierarchical one along hosts inside regions. Of n bytes of a layer's gradients
a rank moves, each way, at three levels (m holders on its host, h hosts in its region, w regions)::

    host      n / m          to each other holder on its host
    region    n / (m h)      to one holder on each other host of its region
    world     n / (H w)      to the holder of the same share in each other region, of H holders

A level ends when the slowest pair is done, and when every NIC has moved what all ranks of its host
send: n (h - 1) / h in the region and n (w - 1) / (w h) in the world, however many they are; in the
world also when every trunk between two regions has moved n / w each way. The layers of all stages
move at the same time, those of one stage one after the other.

Source: Cho et al., "BlueConnect", SysML 2019, section 3, with shared NICs.
"""

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise

import numpy as np

from jaxpipe.plan.partition import Cut
from jaxpipe.plan.segments import refined, segments_within
from jaxpipe.search.fleet.fleet_links import FleetLinks
from jaxpipe.search.fleet.team import Team


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Shared:
    """What some gradients take: seconds of the slowest pair at each level, bytes of each host."""

    latency_s: np.ndarray
    wire_s: np.ndarray
    bytes_of_host: np.ndarray
    """levels x hosts."""
    bytes_of_trunk: np.ndarray
    """regions x regions."""


def sync_s(
    teams: Sequence[Team], links: FleetLinks, *, layer_bytes: np.ndarray, embed_bytes: float
) -> float:
    """Return the seconds of the all-reduces of all gradients, which begin at the same time.

    `layer_bytes` has the bytes of each layer, with those of the embedding in the first and of the
    head in the last; `embed_bytes` are those of a tied embedding, which both ends of a replica
    hold, and which is reduced by itself.
    """
    whole = _by_cut(teams)
    segments = refined(whole)
    ends = [0, *accumulate(segments)]
    shared = [
        _shared(
            _holders(whole, ends[n]),
            links,
            num_bytes=float(layer_bytes[ends[n] : ends[n + 1]].sum()) - embed_bytes * (n == 0),
        )
        for n in range(len(segments))
    ]
    wire_s = np.max([_of_stages(cut, segments, shared) for cut in whole], axis=0)
    if embed_bytes:
        tips = np.concatenate([devices[:, [0, -1]].ravel() for devices in whole.values()])
        shared.append(_shared(np.unique(tips), links, num_bytes=embed_bytes))
        wire_s += shared[-1].wire_s
    moved = np.sum([each.bytes_of_host for each in shared], axis=0)
    nic_s = (moved / np.minimum(links.egress, links.ingress)).max(axis=1)
    crossing = np.sum([segment.bytes_of_trunk for segment in shared], axis=0)
    nic_s[2] = max(nic_s[2], (crossing / links.trunk).max())
    latency_s = np.max([each.latency_s for each in shared], axis=0)
    # Down again as up: reduce-scatter, then all-gather.
    return float(2 * (latency_s + np.maximum(wire_s, nic_s)).sum())


def _by_cut(teams: Sequence[Team]) -> dict[Cut, np.ndarray]:
    """Return the devices of all replicas with the same partition, replicas x stages."""
    found: dict[Cut, list[np.ndarray]] = {}
    for team in teams:
        found.setdefault(team.cut, []).append(team.devices)
    return {cut: np.concatenate(devices) for cut, devices in found.items()}


def _holders(whole: Mapping[Cut, np.ndarray], layer: int) -> np.ndarray:
    """Return the devices that hold a layer."""
    return np.concatenate(
        [devices[:, bisect_right(tuple(accumulate(cut)), layer)] for cut, devices in whole.items()]
    )


def _of_stages(cut: Cut, segments: Cut, shared: Sequence[_Shared]) -> np.ndarray:
    """Return the longest wire seconds at each level of a stage with all of its segments."""
    ends = [0, *accumulate(cut)]
    return np.max(
        [
            np.sum(
                [shared[n].wire_s for n in segments_within(segments, range(start, stop))], axis=0
            )
            for start, stop in pairwise(ends)
        ],
        axis=0,
    )


def _shared(holders: np.ndarray, links: FleetLinks, *, num_bytes: float) -> _Shared:
    """Return what the all-reduce of some gradients takes, one way."""
    on_host = np.bincount(links.host[holders], minlength=links.num_hosts)
    used = np.flatnonzero(on_host)
    regions = links.region[used]
    hosts = np.bincount(regions, minlength=links.num_regions)
    held = np.bincount(regions, weights=on_host[used], minlength=links.num_regions)
    places = np.flatnonzero(hosts)
    num_places = len(places)

    several = used[on_host[used] > 1]
    host_s = num_bytes * links.host_byte_s[several] / on_host[several]
    # The fewest holders on a host have the largest shares.
    fewest = np.full(links.num_regions, np.inf)
    np.minimum.at(fewest, regions, on_host[used])
    wide = np.flatnonzero(hosts > 1)
    region_s = num_bytes * links.byte_s[wide, wide] / (fewest[wide] * hosts[wide])
    apart = ~np.eye(num_places, dtype=bool)
    both = np.ix_(places, places)
    most = np.maximum(held[places][:, None], held[places][None, :])
    world_s = num_bytes * links.byte_s[both] / (most * num_places)

    bytes_of_host = np.zeros((3, links.num_hosts))
    bytes_of_host[1, used] = num_bytes * (hosts[regions] - 1) / hosts[regions]
    bytes_of_host[2, used] = num_bytes * (num_places - 1) / num_places / hosts[regions]
    bytes_of_trunk = np.zeros(links.trunk.shape)
    bytes_of_trunk[both] = num_bytes / num_places * apart
    return _Shared(
        latency_s=np.array(
            [
                links.host_latency_s[several].max(initial=0.0),
                links.latency_s[wide, wide].max(initial=0.0),
                links.latency_s[both][apart].max(initial=0.0),
            ]
        ),
        wire_s=np.array([part.max(initial=0.0) for part in (host_s, region_s, world_s[apart])]),
        bytes_of_host=bytes_of_host,
        bytes_of_trunk=bytes_of_trunk,
    )
