"""A cluster over twenty regions with three GPU types, made up from places and a seed.

The links between two regions follow from their distance d in km: a latency of 2 ms + d / 222 km/ms
one way, and 1.2 Gbit/s exp(-latency / 190 ms) for a pair of devices. For the latencies of
`topo/data/aws_regions.csv` that is -31 to +60 % off the measured bandwidths, at the median -3 %.
"""

import csv
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

_REGIONS = Path(__file__).parent / "fleet_regions.csv"
_EARTH_KM = 6371.0


def fleet_toml(setup: Mapping[str, Any], *, devices: int) -> str:
    """Return a cluster file of about this many devices, equally many in each region.

    The mix of GPU types of each region is random (`seed`): Dirichlet, so that most regions have
    much of one type and little of the others.
    """
    places = _places()
    random = np.random.default_rng(setup["seed"])
    lines = ['name = "fleet"', *_speeds(setup)]
    each = devices // len(places)
    for region in places:
        parts = random.dirichlet([setup["mix"]] * len(setup["kinds"])) * each
        left = each
        for kind, part in zip(setup["kinds"], parts, strict=True):
            is_last = kind is setup["kinds"][-1]
            count = min(left, left if is_last else round(float(part))) // kind["devices"]
            left -= count * kind["devices"]
            if count:
                lines += [
                    "[[hosts]]",
                    f'region = "{region}"',
                    f"count = {count}",
                    f"devices = {kind['devices']}",
                    f'gpu = "{kind["gpu"]}"',
                    f"nic_gbps = {kind['nic_gbps']}",
                ]
    return "\n".join([*lines, *_links(places)]) + "\n"


def _speeds(setup: Mapping[str, Any]) -> Iterator[str]:
    for name in ("inside_host", "inside_region"):
        yield f"[{name}]"
        yield from (f"{key} = {value}" for key, value in setup[name].items())


def _links(places: Mapping[str, tuple[float, float]]) -> Iterator[str]:
    names = list(places)
    for n, one in enumerate(names):
        for other in names[:n]:
            latency_ms = 2 + _distance_km(places[one], places[other]) / 222
            yield "[[links]]"
            yield f'between = ["{one}", "{other}"]'
            yield f"latency_ms = {latency_ms:.1f}"
            yield f"bandwidth_gbps = {1.2 * np.exp(-latency_ms / 190):.3f}"


def _places() -> dict[str, tuple[float, float]]:
    lines = [line for line in _REGIONS.read_text().splitlines() if not line.startswith("#")]
    return {
        row["region"]: (float(row["latitude"]), float(row["longitude"]))
        for row in csv.DictReader(lines)
    }


def _distance_km(one: tuple[float, float], other: tuple[float, float]) -> float:
    """Return the length of the great circle between two places (haversine)."""
    (a, b), (c, d) = np.radians(one), np.radians(other)
    half = np.sin((c - a) / 2) ** 2 + np.cos(a) * np.cos(c) * np.sin((d - b) / 2) ** 2
    return float(2 * _EARTH_KM * np.arcsin(np.sqrt(half)))
