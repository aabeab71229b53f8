"""Clusters as TOML files: the ones that come with jaxpipe by name, and a user's own by path.

The file names hosts, a group of like ones at a time, and the links between regions::

    name = "two-region"

    [[hosts]]                       # 2 hosts called ohio-0 and ohio-1
    region = "ohio"
    count = 2
    devices = 1

    [[links]]                       # `between` says both directions at once,
    between = ["ohio", "virginia"]  # `source` and `destination` say one
    latency_ms = 11
    bandwidth_gbps = 1.12

    [inside_host]                   # between devices of one host
    latency_ms = 0
    bandwidth_gbps = 100

A link between a region and itself joins its hosts.
"""

import difflib
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path

import msgspec
import numpy as np

from topo.cluster import Cluster, Device
from topo.units import bytes_per_s_from_gbps, seconds_from_ms


@dataclass(frozen=True, slots=True, kw_only=True)
class _Hosts:
    region: str
    count: int = 1
    devices: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class _Speed:
    latency_ms: float
    bandwidth_gbps: float


@dataclass(frozen=True, slots=True, kw_only=True)
class _RegionLink:
    latency_ms: float
    bandwidth_gbps: float
    between: tuple[str, str] | None = None
    source: str | None = None
    destination: str | None = None

    def directions(self) -> tuple[tuple[str, str], ...]:
        if self.between is not None:
            a, b = self.between
            return ((a, b), (b, a))
        if self.source is None or self.destination is None:
            raise ValueError("a link in `links` has neither `between` nor `source` + `destination`")
        return ((self.source, self.destination),)


@dataclass(frozen=True, slots=True, kw_only=True)
class _File:
    name: str
    hosts: tuple[_Hosts, ...]
    links: tuple[_RegionLink, ...] = ()
    inside_host: _Speed = field(default_factory=lambda: _Speed(latency_ms=0, bandwidth_gbps=100))


def names() -> tuple[str, ...]:
    """Return the names of the clusters that come with jaxpipe."""
    folder = resources.files("topo") / "data"
    return tuple(sorted(p.name[:-5] for p in folder.iterdir() if p.name.endswith(".toml")))


def load(name_or_path: str) -> Cluster:
    """Return the cluster of that name in the catalogue, or of that TOML file.

    Raises:
        ValueError: there is no such cluster, or the file does not describe one.
    """
    if name_or_path in names():
        text = (resources.files("topo") / "data" / f"{name_or_path}.toml").read_text()
    elif Path(name_or_path).is_file():
        text = Path(name_or_path).read_text()
    else:
        near = difflib.get_close_matches(name_or_path, names(), n=1)
        hint = f"did you mean {near[0]!r}? " if near else ""
        choices = ", ".join(names())
        raise ValueError(f"no cluster {name_or_path!r}: {hint}give a TOML file or one of {choices}")
    try:
        return _build(msgspec.convert(tomllib.loads(text), _File))
    except ValueError as error:
        raise ValueError(f"cluster {name_or_path!r}: {error}") from error


def _devices(hosts: tuple[_Hosts, ...]) -> Iterator[Device]:
    seen: dict[str, int] = {}
    for group in hosts:
        for _ in range(group.count):
            index = seen.get(group.region, 0)
            seen[group.region] = index + 1
            host = f"{group.region}-{index}"
            for slot in range(group.devices):
                yield Device(name=f"{host}:{slot}", host=host, region=group.region)


def _build(file: _File) -> Cluster:
    devices = tuple(_devices(file.hosts))
    between = {pair: link for link in file.links for pair in link.directions()}
    latency = np.zeros((len(devices), len(devices)))
    bandwidth = np.full(latency.shape, np.inf)
    for i, a in enumerate(devices):
        for j, b in enumerate(devices):
            if i == j:
                continue
            speed = file.inside_host if a.host == b.host else between.get((a.region, b.region))
            if speed is None:
                raise ValueError(f"no entry in `links` leads from {a.region!r} to {b.region!r}")
            latency[i, j] = seconds_from_ms(speed.latency_ms)
            bandwidth[i, j] = bytes_per_s_from_gbps(speed.bandwidth_gbps)
    return Cluster(
        name=file.name, devices=devices, latency_s=latency, bandwidth_bytes_per_s=bandwidth
    )
