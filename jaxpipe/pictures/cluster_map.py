"""A map of a cluster's sites: regions as circles, links as lines, wider with more bandwidth.

::

              1.1 Gbit/s, 49 ms          1.12 Gbit/s, 11 ms
      oregon ━━━━━━━━━━━━━━━━━━━━ ohio ━━━━━━━━━━━━━━━━━━━━━ virginia
        └────────────── 0.79 Gbit/s, 67 ms ───────────────────┘

Regions of known position are where they are on earth; if that of any is unknown, all are placed so
that their distances follow the latencies, by classical scaling.

Source of the scaling: Torgerson, "Multidimensional scaling: I. Theory and method", 1952.
"""

from dataclasses import dataclass
from itertools import combinations
from math import cos, radians
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from jaxpipe.pictures.axis_units import plain_number
from jaxpipe.pictures.canvas import WIDTH_IN, check_format, new_figure, plain_text, save
from jaxpipe.pictures.palette import BLUE, DARK, GREY, ORANGE
from jaxpipe.topo import Cluster, site_positions
from jaxpipe.topo.units import gbps_from_bytes_per_s, ms_from_seconds

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_FEW_LINKS: Final = 10
"""Up to this many links all have a label; of more, those that join all regions fastest."""
_WIDTHS_POINTS: Final = (0.8, 9.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class SiteLink:
    """The link between two regions, with the worst latency and bandwidth of their devices.

    `latency_s` and `bytes_per_s` are there and back.
    """

    between: tuple[int, int]
    latency_s: tuple[float, float]
    bytes_per_s: tuple[float, float]

    @property
    def slowest_bytes_per_s(self) -> float:
        """The bandwidth of the slower direction."""
        return min(self.bytes_per_s)

    @property
    def label(self) -> str:
        """Bandwidth and latency, both directions where they differ."""
        gbps = _both(*map(gbps_from_bytes_per_s, self.bytes_per_s))
        ms = _both(*map(ms_from_seconds, self.latency_s))
        return f"{gbps} Gbit/s\n{ms} ms"


def draw_map(cluster: Cluster, path: Path) -> None:
    """Draw the regions of a cluster and their links as the PNG, SVG or PDF that `path` names.

    Raises:
        UserError: matplotlib is missing, or the ending of the file names no format.
    """
    check_format(path)
    places = places_of(cluster)
    links = site_links(cluster)
    labelled = links if len(links) <= _FEW_LINKS else spanning_links(links)
    shape = np.ptp(places.points, axis=0)
    height_in = WIDTH_IN * min(0.65, max(0.3, float(shape[1] / shape[0]) if shape[0] else 0.65))
    figure = new_figure(height_in=height_in + 1.2)
    axes = figure.subplots()
    _draw_links(axes, places.points, links, labelled)
    _draw_sites(axes, cluster, places.points)
    title = f"{cluster.name}: {len(cluster):,} devices in {_count(len(cluster.regions), 'region')}"
    axes.set_title(plain_text(title), loc="left", fontweight="bold", pad=24)
    caption = f"{_count(len(links), 'link')}, wider with more bandwidth"
    if len(labelled) < len(links):
        caption += "; blue: the fastest that join all regions"
    caption += f"; {places.about}"
    axes.text(0.0, 1.01, caption, transform=axes.transAxes, va="bottom", color=DARK)
    axes.set_aspect("equal", adjustable="datalim")
    axes.margins(0.1, 0.16)
    axes.set_axis_off()
    save(figure, path)


def _count(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


def site_links(cluster: Cluster) -> tuple[SiteLink, ...]:
    """Return the links between all pairs of regions, in their order."""
    members = _members(cluster)
    site_pairs = []
    for one, other in combinations(range(len(members)), 2):
        there, back = np.ix_(members[one], members[other]), np.ix_(members[other], members[one])
        latency_s, bandwidth = cluster.latency_s, cluster.bandwidth_bytes_per_s
        site_pairs.append(
            SiteLink(
                between=(one, other),
                latency_s=(float(latency_s[there].max()), float(latency_s[back].max())),
                bytes_per_s=(float(bandwidth[there].min()), float(bandwidth[back].min())),
            )
        )
    return tuple(site_pairs)


def spanning_links(links: tuple[SiteLink, ...]) -> tuple[SiteLink, ...]:
    """Return the fastest links that join all regions: a maximum spanning tree, by Kruskal.

    >>> fast, slow, slower = (
    ...     SiteLink(between=pair, latency_s=(0.0, 0.0), bytes_per_s=(speed, speed))
    ...     for pair, speed in (((0, 1), 3.0), ((1, 2), 2.0), ((0, 2), 1.0))
    ... )
    >>> spanning_links((slower, slow, fast)) == (fast, slow)
    True
    """
    group = {region: region for link in links for region in link.between}
    spanning = []
    for link in sorted(links, key=lambda candidate: -candidate.slowest_bytes_per_s):
        one, other = (group[region] for region in link.between)
        if one != other:
            spanning.append(link)
            group = {region: one if of == other else of for region, of in group.items()}
    return tuple(spanning)


def scaled_positions(latency_s: np.ndarray) -> np.ndarray:
    """Return a point for each region, whose distances follow the latencies as well as a plane can.

    >>> points = scaled_positions(np.array([[0.0, 3.0, 4.0], [3.0, 0.0, 5.0], [4.0, 5.0, 0.0]]))
    >>> distance = np.linalg.norm(points[1] - points[2])
    >>> bool(abs(distance - 5.0) < 1e-9)
    True
    """
    num = len(latency_s)
    squares = ((latency_s + latency_s.T) / 2) ** 2
    centre = np.eye(num) - 1 / num
    values, vectors = np.linalg.eigh(-centre @ squares @ centre / 2)
    # The two largest; latencies that no space has may make others negative.
    order = np.argsort(values)[::-1][:2]
    points = vectors[:, order] * np.sqrt(np.maximum(values[order], 0.0))
    # A vector and its negative are one solution: the one with the farthest region on the left.
    signs = [-1.0 if column[np.argmax(np.abs(column))] > 0 else 1.0 for column in points.T]
    return np.pad(points * signs, ((0, 0), (0, 2 - len(signs))))


@dataclass(frozen=True, slots=True, kw_only=True)
class RegionPlaces:
    """A point of the plane for each region, and where the points are from."""

    points: np.ndarray
    about: str


def places_of(cluster: Cluster) -> RegionPlaces:
    """Return where the regions are drawn: on earth if all positions are known, else by latency."""
    known = site_positions()
    if all(region in known for region in cluster.regions):
        points = _projected(np.array([known[region] for region in cluster.regions]))
        width, height = np.ptp(points, axis=0)
        stretch = 1.0
        if 0.0 < height < _FLATTEST * width:
            stretch = min(_MOST_STRETCHED, _FLATTEST * width / height)
        about = "positions on earth, near ones moved apart"
        if stretch > 1.05:
            about += f", stretched {plain_number(stretch, digits=2)}x from south to north"
        return RegionPlaces(points=_apart(points * (1.0, stretch)), about=about)
    num = len(cluster.regions)
    latency_s = np.zeros((num, num))
    for link in site_links(cluster):
        one, other = link.between
        latency_s[one, other], latency_s[other, one] = link.latency_s
    return RegionPlaces(
        points=_apart(scaled_positions(latency_s)), about="distances follow latency"
    )


_FLATTEST: Final = 0.4
_MOST_STRETCHED: Final = 4.0


def _projected(degrees: np.ndarray) -> np.ndarray:
    """Return latitudes and longitudes as points of a plane, cut where there are no regions."""
    latitude, longitude = degrees[:, 0], degrees[:, 1] % 360
    order = np.sort(longitude)
    gaps = np.diff([*order, order[0] + 360])
    cut = order[(np.argmax(gaps) + 1) % len(order)]  # the map begins behind the widest gap
    width = cos(radians(float(latitude.mean())))
    return np.column_stack([((longitude - cut) % 360) * width, latitude])


def _apart(points: np.ndarray) -> np.ndarray:
    """Return points in a unit square, moved until none of them hides another."""
    size = float(np.ptp(points, axis=0).max())
    if not size > 0.0:  # all in one place, for example without any latency: on a circle
        angles = np.linspace(0.0, 2 * np.pi, len(points), endpoint=False)
        return np.column_stack([np.cos(angles), np.sin(angles)]) / 2
    points = (points - points.min(axis=0)) / size
    for _ in range(_ROUNDS):
        offsets = points[:, None] - points[None]
        distances = np.linalg.norm(offsets, axis=2)
        np.fill_diagonal(distances, np.inf)
        missing = np.maximum(0.0, _NEAREST - distances)
        directions = offsets / np.maximum(distances, 1e-9)[..., None]
        # Of two in one point the earlier moves to the left.
        same = np.triu(distances < 1e-9)
        directions[same], directions[same.T] = (-1.0, 0.0), (1.0, 0.0)
        points = points + 0.25 * (missing[..., None] * directions).sum(axis=1)
    return points


_ROUNDS: Final = 200
_NEAREST: Final = 0.18
"""Of the size of the map: nearer circles and labels would lie over each other."""


def _members(cluster: Cluster) -> list[np.ndarray]:
    regions = np.array([cluster.regions.index(device.region) for device in cluster.devices])
    return [np.flatnonzero(regions == number) for number in range(len(cluster.regions))]


def _draw_links(
    axes: "Axes",
    places: np.ndarray,
    links: tuple[SiteLink, ...],
    labelled: tuple[SiteLink, ...],
) -> None:
    fastest = max((link.slowest_bytes_per_s for link in links), default=1.0)
    thin, thick = _WIDTHS_POINTS
    for link in sorted(links, key=lambda drawn: drawn in labelled):
        is_labelled = link in labelled
        curve = _arc(*places[list(link.between)])
        axes.plot(
            *curve.T,
            color=BLUE if is_labelled else GREY,
            alpha=0.55,
            linewidth=max(thin, thick * link.slowest_bytes_per_s / fastest),
            solid_capstyle="butt",
            zorder=1 + is_labelled,
        )
        if is_labelled:
            _write(axes, curve[len(curve) // 2], link.label, zorder=3, fontsize=8)


def _arc(start: np.ndarray, end: np.ndarray) -> np.ndarray:
    """Return points of a curve that rises above the straight line: links in one line stay apart."""
    along = end - start
    across = np.array([-along[1], along[0]])
    if across[1] < 0:
        across = -across
    fraction = np.linspace(0.0, 1.0, 33)[:, None]
    return start + fraction * along + 4 * _BEND * fraction * (1 - fraction) * across


_BEND: Final = 0.09
"""The height of an arc in the middle, as a fraction of its length."""


def _write(axes: "Axes", position: np.ndarray, text: str, **looks: Any) -> None:
    box = {"boxstyle": "round,pad=0.15", "facecolor": "white", "edgecolor": "none", "alpha": 0.85}
    axes.annotate(
        plain_text(text),
        (float(position[0]), float(position[1])),
        textcoords="offset points",
        **{"xytext": (0, 0), "ha": "center", "va": "center", "bbox": box, **looks},
    )


def _draw_sites(axes: "Axes", cluster: Cluster, places: np.ndarray) -> None:
    counts = [len(members) for members in _members(cluster)]
    sizes = [120 + 380 * count / max(counts) for count in counts]
    axes.scatter(*places.T, s=sizes, color=ORANGE, edgecolor="white", linewidth=1.5, zorder=4)
    for position, region, count in zip(places, cluster.regions, counts, strict=True):
        text = f"{region}\n{_count(count, 'device')}"
        looks = {"fontsize": 9, "fontweight": "bold", "color": DARK}
        # Below, as the arcs rise.
        _write(axes, position, text, xytext=(0, -14), va="top", zorder=5, **looks)


def _both(there: float, back: float) -> str:
    one, other = plain_number(there), plain_number(back)
    return one if one == other else f"{one} / {other}"
