"""Link matrices over devices, from links between regions and inside regions and hosts."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from math import inf, nan

import numpy as np

from jaxpipe.topo.cluster import Device
from jaxpipe.topo.cluster_file import ClusterFile, RegionLink, Speed
from jaxpipe.topo.csv_table import csv_rows
from jaxpipe.topo.host_groups import ReadBeside, parse_beside
from jaxpipe.topo.names import is_name
from jaxpipe.topo.nvidia import gpu_link_speed
from jaxpipe.topo.units import bytes_per_s_from_gbps, seconds_from_ms

_LINK_COLUMNS = frozenset(("region_a", "region_b", "latency_ms", "bandwidth_gbps"))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Matrices:
    """The links of all ordered pairs; both bandwidths may be the same array."""

    latency_s: np.ndarray
    bandwidth_bytes_per_s: np.ndarray
    alone_bytes_per_s: np.ndarray

    def join_gpus(self, kinds: Sequence[Sequence[str]], *, start: int, stop: int) -> None:
        """Set the links between the devices `start` to `stop`, which are on one host."""
        for a in range(start, stop):
            for b in range(start, stop):
                if a != b:
                    speed = gpu_link_speed(kinds[a - start][b - start])
                    bytes_per_s = bytes_per_s_from_gbps(speed.bandwidth_gbps)
                    self.latency_s[a, b] = seconds_from_ms(speed.latency_ms)
                    self.bandwidth_bytes_per_s[a, b] = bytes_per_s
                    self.alone_bytes_per_s[a, b] = bytes_per_s


def matrices_by_region(
    file: ClusterFile, devices: tuple[Device, ...], read_beside: ReadBeside
) -> Matrices:
    """Return the links of all devices.

    Raises:
        ValueError: two hosts have no link.
    """
    regions = list(dict.fromkeys(device.region for device in devices))
    region = _numbers([device.region for device in devices])
    host = _numbers([device.host for device in devices])
    speeds = _region_speeds(file, regions, read_beside)
    lonely = [len(np.unique(host[region == i])) == 1 for i in range(len(regions))]
    _check_joined(speeds, regions, lonely)
    same_host = host[:, None] == host[None, :]
    pairs = (region[:, None], region[None, :])

    def spread(of: Callable[[Speed], float], diagonal: float) -> np.ndarray:
        # NaN: no link. After the check, only pairs inside one host have none.
        table = np.array([[np.nan if s is None else of(s) for s in row] for row in speeds])
        matrix = np.where(same_host, of(file.inside_host), table[pairs])
        np.fill_diagonal(matrix, diagonal)
        return matrix

    bandwidth = spread(lambda s: bytes_per_s_from_gbps(s.bandwidth_gbps), np.inf)
    used = [file.inside_host, *(s for row in speeds for s in row if s is not None)]
    has_alone = any(s.alone_gbps is not None for s in used)
    return Matrices(
        latency_s=spread(lambda s: seconds_from_ms(s.latency_ms), 0.0),
        bandwidth_bytes_per_s=bandwidth,
        # One array for both bandwidths where no link has `alone_gbps`: half of the memory.
        alone_bytes_per_s=spread(_alone_bytes_per_s, np.inf) if has_alone else bandwidth,
    )


def _numbers(names: Sequence[str]) -> np.ndarray:
    """Return numbers of the names, in the order of their first occurrence."""
    number: dict[str, int] = {}
    return np.array([number.setdefault(name, len(number)) for name in names])


def _alone_bytes_per_s(speed: Speed) -> float:
    return bytes_per_s_from_gbps(speed.alone_gbps or speed.bandwidth_gbps)


def _region_speeds(
    file: ClusterFile, regions: list[str], read_beside: ReadBeside
) -> list[list[Speed | None]]:
    known: dict[tuple[str, str], Speed] = {}
    for a in regions:
        for b in regions:
            default = file.inside_region if a == b else file.across_regions
            if default is not None:
                known[a, b] = default
    if file.link_table is not None:
        known |= parse_beside(file.link_table, _link_table, read_beside)
    known |= _stated(file.links, regions)
    return [[known.get((a, b)) for b in regions] for a in regions]


def _stated(links: Sequence[RegionLink], regions: list[str]) -> dict[tuple[str, str], Speed]:
    """Return the links of `[[links]]`; unlike a table for many clusters, all of them are meant."""
    stated: dict[tuple[str, str], Speed] = {}
    for link in links:
        # Once each: `between` names a region twice for the links inside it.
        for pair in dict.fromkeys(link.directions()):
            _check_regions(pair, regions)
            if pair in stated:
                raise ValueError(
                    f"`links` must have one entry for each direction: {pair[0]!r} to {pair[1]!r} "
                    "has two; remove one"
                )
            stated[pair] = link
    return stated


def _check_regions(pair: tuple[str, str], regions: list[str]) -> None:
    for region in pair:
        if region not in regions:
            near = get_close_matches(region, regions, n=1)
            hint = f"did you mean {near[0]!r}? " if near else ""
            raise ValueError(
                f"`links` must name regions of `hosts`: no host is in {region!r}; {hint}"
                f"choose from {', '.join(regions)}"
            )


def _check_joined(speeds: list[list[Speed | None]], regions: list[str], lonely: list[bool]) -> None:
    """Check that all hosts have links; a region of one host needs none inside."""
    for i, row in enumerate(speeds):
        for j, speed in enumerate(row):
            if speed is None and not (i == j and lonely[i]):
                raise ValueError(
                    f"`links` must have an entry from {regions[i]!r} to {regions[j]!r}: add one, "
                    f"or `inside_region` or `across_regions`"
                )


def _link_table(text: str) -> dict[tuple[str, str], Speed]:
    """Parse region_a, region_b, latency_ms, bandwidth_gbps: both directions are equal."""
    known: dict[tuple[str, str], Speed] = {}
    for number, row in enumerate(csv_rows(text), start=1):
        if missing := _LINK_COLUMNS - row.keys():
            raise ValueError(f"`link_table` must have a column `{min(missing)}`")
        try:
            latency_ms, gbps = float(row["latency_ms"]), float(row["bandwidth_gbps"])
        except ValueError:
            latency_ms = gbps = nan
        if not (is_name(row["region_a"]) and is_name(row["region_b"]) and 0 < gbps < inf):
            raise ValueError(
                f"`link_table` must have the names of two regions and two numbers in a row: row "
                f"{number} has something else"
            )
        speed = Speed(latency_ms=latency_ms, bandwidth_gbps=gbps)
        known[row["region_a"], row["region_b"]] = speed
        known[row["region_b"], row["region_a"]] = speed
    return known
