"""From what was measured between ranks to a cluster, its islands as regions."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import inf

import numpy as np

from jaxpipe.topo.cluster import Cluster, Device, Host, Trunk
from jaxpipe.topo.cluster_file import Measured
from jaxpipe.topo.host_tcp import FIRST_WINDOW_BYTES, TcpAdvice, TcpSettings, tcp_advice
from jaxpipe.topo.islands import find_islands, flatten, message_seconds

_SHARED_BELOW = 0.8


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeSettings:
    """How many messages of what sizes measure a pair; the first ones only warm it up."""

    small_bytes: int = 8
    small_repeats: int = 20
    large_bytes: int = 8 * 2**20
    large_repeats: int = 5
    warmup: int = 2

    def __post_init__(self) -> None:
        for name in ("small_bytes", "small_repeats", "large_bytes", "large_repeats"):
            if getattr(self, name) < 1:
                raise ValueError(f"`{name}` must be at least 1, is {getattr(self, name)}")
        if self.warmup < 0:
            raise ValueError(f"`warmup` must not be negative, is {self.warmup}")


@dataclass(frozen=True, slots=True, kw_only=True)
class NicSample:
    """The bytes/s of a host whose devices all send, or all receive, at once."""

    host: str
    pairs: tuple[tuple[int, int], ...]
    bytes_per_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class TrunkSample:
    """The bytes/s from one region to another: of the first of the pairs alone, and of all at once.

    When pairs are measured, those of other hosts may talk as well, so that what is in the matrix
    may be a part of the trunk.
    """

    regions: tuple[str, str]
    num_pairs: int
    alone_bytes_per_s: float
    bytes_per_s: float

    @property
    def is_shared(self) -> bool:
        """Whether the pairs together reach less than each of them alone would."""
        return self.bytes_per_s < _SHARED_BELOW * self.num_pairs * self.alone_bytes_per_s

    @property
    def trunk(self) -> Trunk:
        """What the pairs share, to four significant digits."""
        source, destination = self.regions
        bytes_per_s = float(f"{self.bytes_per_s:.4g}")
        return Trunk(source=source, destination=destination, bytes_per_s=bytes_per_s)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Measurements:
    """What was measured between ranks; a matrix's row is the source, its column the destination.

    `hosts` names each rank's host. The latency is half of a round trip.
    """

    hosts: tuple[str, ...]
    latency_s: np.ndarray
    latency_spread_s: np.ndarray
    bytes_per_s: np.ndarray
    spread_bytes_per_s: np.ndarray
    egress: tuple[NicSample, ...] = ()
    ingress: tuple[NicSample, ...] = ()
    trunks: tuple[TrunkSample, ...] = ()
    tcp: tuple[TcpSettings | None, ...] = ()
    """Of the host of each rank."""


def cluster_of(measurements: Measurements, *, name: str) -> Cluster:
    """Return the cluster: its devices are the ranks, host by host, its regions the islands.

    A NIC counts as shared if devices together reach less than 0.8 of what they reach one by one;
    then a pair can count on its part of it. So does a trunk, of which a pair can have all alone.
    Matrices keep four significant digits.
    """
    order = by_host(measurements.hosts)
    ranks = np.ix_(order, order)
    host_of_rank = [measurements.hosts[rank] for rank in order]
    names = tuple(dict.fromkeys(host_of_rank))
    egress = _shared(measurements, measurements.egress)
    ingress = _shared(measurements, measurements.ingress)
    alone = _with_diagonal(_rounded(measurements.bytes_per_s[ranks]), inf)
    latency = _with_diagonal(_rounded(measurements.latency_s[ranks]), 0.0)
    regions = regions_of(measurements)
    trunks = [sample for sample in measurements.trunks if sample.is_shared]
    _raise_lone_pairs(alone, [regions[host] for host in host_of_rank], trunks)
    hosts = tuple(
        Host(
            name=host,
            region=regions[host],
            egress_bytes_per_s=egress.get(host, inf),
            ingress_bytes_per_s=ingress.get(host, inf),
        )
        for host in names
    )
    # Quadratic in the ranks, as the matrices are.
    slots = [host_of_rank[:i].count(host) for i, host in enumerate(host_of_rank)]
    return Cluster(
        name=name,
        devices=tuple(
            Device(name=f"{host}:{slot}", host=host, region=regions[host])
            for host, slot in zip(host_of_rank, slots, strict=True)
        ),
        hosts=hosts,
        trunks=tuple(sample.trunk for sample in trunks),
        latency_s=latency,
        # A pair has its own link and its part of both NICs: the smaller one.
        bandwidth_bytes_per_s=np.minimum(alone, _parts(host_of_rank, egress, ingress)),
        alone_bytes_per_s=alone,
        restart_bytes=FIRST_WINDOW_BYTES if _restarts(measurements) else None,
    )


def _raise_lone_pairs(
    alone: np.ndarray, regions: Sequence[str], trunks: Iterable[TrunkSample]
) -> None:
    """Give each pair across a trunk what one has alone: others talked while it was measured."""
    region_of = np.array(regions)
    for sample in trunks:
        source, destination = sample.regions
        across = np.ix_(region_of == source, region_of == destination)
        alone[across] = np.maximum(alone[across], float(f"{sample.alone_bytes_per_s:.4g}"))


def _restarts(measurements: Measurements) -> bool:
    settings = [setting for setting in measurements.tcp if setting is not None]
    return len(set(measurements.hosts)) > 1 and any(setting.restarts for setting in settings)


def by_host(hosts: tuple[str, ...]) -> list[int]:
    """Return the ranks, those of a host together, hosts in the order of their first ranks.

    >>> by_host(("a", "b", "a"))
    [0, 2, 1]
    """
    return sorted(range(len(hosts)), key=lambda rank: hosts.index(hosts[rank]))


def spread_of(measurements: Measurements, settings: ProbeSettings) -> Measured:
    """Return how the devices of `cluster_of` were measured, and how far the samples spread."""
    order = by_host(measurements.hosts)
    ranks = np.ix_(order, order)
    return Measured(
        small_bytes=settings.small_bytes,
        small_repeats=settings.small_repeats,
        large_bytes=settings.large_bytes,
        large_repeats=settings.large_repeats,
        latency_spread_s=_rows(measurements.latency_spread_s[ranks]),
        bandwidth_spread_bytes_per_s=_rows(measurements.spread_bytes_per_s[ranks]),
    )


def advice_of(measurements: Measurements) -> tuple[TcpAdvice, ...]:
    """Return what the settings of the hosts cost on the links that were measured."""
    hosts = np.array(measurements.hosts)
    is_between = hosts[:, None] != hosts[None, :]
    if not is_between.any():
        return ()
    rtt_s = (measurements.latency_s + measurements.latency_s.T)[is_between]
    in_flight = rtt_s * measurements.bytes_per_s[is_between]
    given = tcp_advice(
        measurements.tcp, rtt_s=float(rtt_s.max()), bytes_in_flight=float(in_flight.max())
    )
    return tuple(given)


def _rows(matrix: np.ndarray) -> tuple[tuple[float, ...], ...]:
    return tuple(tuple(row) for row in _rounded(matrix).tolist())


def _rounded(matrix: np.ndarray) -> np.ndarray:
    """Return the numbers to four significant digits: more were not measured."""
    return np.array([[float(f"{number:.4g}") for number in row] for row in matrix])


def _with_diagonal(matrix: np.ndarray, value: float) -> np.ndarray:
    np.fill_diagonal(matrix, value)
    return matrix


def _shared(measurements: Measurements, samples: tuple[NicSample, ...]) -> dict[str, float]:
    """Return the limit of each NIC that its host's devices were seen to share."""
    limits: dict[str, float] = {}
    for sample in samples:
        one_by_one = sum(float(measurements.bytes_per_s[pair]) for pair in sample.pairs)
        if sample.bytes_per_s < _SHARED_BELOW * one_by_one:
            limits[sample.host] = float(f"{sample.bytes_per_s:.4g}")
    return limits


def _parts(host_of: list[str], egress: dict[str, float], ingress: dict[str, float]) -> np.ndarray:
    """Return what each pair has of the NICs between its hosts, if all devices talk."""
    out = np.array([egress.get(host, inf) / host_of.count(host) for host in host_of])
    into = np.array([ingress.get(host, inf) / host_of.count(host) for host in host_of])
    names = np.array(host_of)
    same_host = names[:, None] == names[None, :]
    return np.where(same_host, inf, np.minimum(out[:, None], into[None, :]))


def regions_of(measurements: Measurements) -> dict[str, str]:
    """Return each host's region: an island of hosts."""
    names = list(dict.fromkeys(measurements.hosts))
    number = np.array([names.index(host) for host in measurements.hosts])
    distance = np.full((len(names), len(names)), inf)
    latency = _with_diagonal(measurements.latency_s.copy(), 0.0)
    alone = _with_diagonal(measurements.bytes_per_s.copy(), inf)
    # `minimum.at`: many pairs of devices belong to one pair of hosts, whose nearest counts.
    np.minimum.at(distance, (number[:, None], number[None, :]), message_seconds(latency, alone))
    np.fill_diagonal(distance, 0.0)
    islands = find_islands(distance)
    # Single hosts everywhere: one region, not a region each.
    if all(isinstance(island, int) for island in islands):
        islands = (islands,)
    return {
        names[host]: f"island-{i}" for i, island in enumerate(islands) for host in flatten(island)
    }
