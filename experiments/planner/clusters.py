"""The networks of this experiment: small random ones, and large ones over regions of the world."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum

import numpy as np

from jaxpipe import topo

_BYTES_PER_S = 1e9 / 8


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Links:
    """Latencies in seconds and bandwidths in bytes per second, devices x devices."""

    latency_s: np.ndarray
    bandwidth_bytes_per_s: np.ndarray

    def __len__(self) -> int:
        return len(self.latency_s)

    def permuted(self, order: np.ndarray) -> "Links":
        """Return the links of the devices in this order."""
        both = np.ix_(order, order)
        return Links(
            latency_s=self.latency_s[both],
            bandwidth_bytes_per_s=self.bandwidth_bytes_per_s[both],
        )


class Kind(StrEnum):
    """Kinds of random networks; the value names the kind in the tables."""

    PLANE = "points in a plane"
    PAIRS = "independent pairs"
    REGIONS = "hosts in regions"
    ASYMMETRIC = "independent directions"


def random_links(kind: Kind, num_devices: int, *, random: np.random.Generator) -> Links:
    """Return a random network of this kind."""
    latency_s, gbps = _MAKERS[kind](num_devices, random)
    return Links(latency_s=latency_s, bandwidth_bytes_per_s=gbps * _BYTES_PER_S)


def world(
    regions: Sequence[str], *, num_devices: int, devices_per_host: int, noise: float, seed: int
) -> tuple[Links, np.ndarray]:
    """Return the links of devices over the world in random order, and the region of each device.

    `noise` is the standard deviation of the logarithm of the factors on latencies and bandwidths.
    """
    hosts = num_devices // len(regions) // devices_per_host
    settings = f"regions={'+'.join(regions)},hosts={hosts},devices={devices_per_host}"
    cluster = topo.load(f"aws:{settings}")
    assert len(cluster) == num_devices, (len(cluster), num_devices)
    random = np.random.default_rng(seed)
    exact = Links(
        latency_s=cluster.latency_s * _off(num_devices, noise=noise, random=random),
        bandwidth_bytes_per_s=cluster.bandwidth_bytes_per_s
        * _off(num_devices, noise=noise, random=random),
    )
    order = random.permutation(num_devices)
    names = np.array([device.region for device in cluster.devices])
    return exact.permuted(order), names[order]


def _off(num_devices: int, *, noise: float, random: np.random.Generator) -> np.ndarray:
    return np.exp(_both_ways(random.normal(0.0, noise, (num_devices, num_devices))))


def _both_ways(matrix: np.ndarray) -> np.ndarray:
    upper = np.triu(matrix, 1)
    return upper + upper.T


def _plane(num_devices: int, random: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    places = random.random((num_devices, 2))
    distance = np.linalg.norm(places[:, None] - places[None, :], axis=2)
    noise = np.exp(_both_ways(random.normal(0.0, 0.5, distance.shape)))
    return 0.001 + 0.1 * distance, noise / (0.2 + distance)


def _pairs(num_devices: int, random: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    latency_s, gbps = _asymmetric(num_devices, random)
    return _both_ways(latency_s), _both_ways(gbps) + np.eye(num_devices)


def _regions(num_devices: int, random: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    num_regions = int(random.integers(1, 5))
    region = random.integers(num_regions, size=num_devices)
    host = 3 * region + random.integers(3, size=num_devices)
    latency_s = _both_ways(random.uniform(0.01, 0.2, (num_regions, num_regions)))
    gbps = _both_ways(random.uniform(0.3, 1.2, (num_regions, num_regions)))
    np.fill_diagonal(latency_s, 0.005)
    np.fill_diagonal(gbps, 2.0)
    between, alike = np.ix_(region, region), host[:, None] == host
    return np.where(alike, 0.0, latency_s[between]), np.where(alike, 100.0, gbps[between])


def _asymmetric(num_devices: int, random: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    shape = (num_devices, num_devices)
    return random.uniform(0.0, 0.2, shape), random.uniform(0.3, 5.0, shape)


_MAKERS: dict[Kind, Callable[[int, np.random.Generator], tuple[np.ndarray, np.ndarray]]] = {
    Kind.PLANE: _plane,
    Kind.PAIRS: _pairs,
    Kind.REGIONS: _regions,
    Kind.ASYMMETRIC: _asymmetric,
}
