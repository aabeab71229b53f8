"""A cluster as a picture: latency and bandwidth of all ordered pairs, regions marked.

Drawn with matplotlib, which the extra `plot` brings.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from topo.cluster import Cluster
from topo.units import gbps_from_bytes_per_s, ms_from_seconds

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_DPI = 100
_SIZE_IN = (12.0, 5.6)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Look:
    """A panel's title, and its colours: bright is near or fast."""

    title: str
    colors: str


def draw_picture(cluster: Cluster, path: Path) -> None:
    """Draw the links of a cluster as a PNG of 1200 pixels' width at `path`.

    A row is a sender, a column a receiver.

    Raises:
        ValueError: matplotlib is missing.
    """
    try:
        from matplotlib.figure import Figure
        from matplotlib.layout_engine import ConstrainedLayoutEngine
    except ImportError as error:
        raise ValueError(
            "a picture needs matplotlib, which is not installed: run `pip install 'jaxpipe[plot]'`"
        ) from error
    figure = Figure(figsize=_SIZE_IN, dpi=_DPI, layout=ConstrainedLayoutEngine(w_pad=0.1))
    figure.suptitle(f"{cluster.name}: {len(cluster):,} devices, from row to column")
    left, right = figure.subplots(1, 2)
    latency_ms = ms_from_seconds(1) * cluster.latency_s
    gbps = gbps_from_bytes_per_s(1) * cluster.bandwidth_bytes_per_s
    _panel(figure, left, cluster, latency_ms, _Look(title="latency, ms", colors="viridis_r"))
    _panel(figure, right, cluster, gbps, _Look(title="bandwidth, Gbps", colors="viridis"))
    figure.savefig(path)


def _panel(
    figure: "Figure", axes: "Axes", cluster: Cluster, values: np.ndarray, look: _Look
) -> None:
    from matplotlib.colors import LogNorm, Normalize

    shown = values.astype(float)
    # The diagonal, 0 s and infinite bandwidth, would take the whole scale.
    np.fill_diagonal(shown, np.nan)
    told = shown[np.isfinite(shown)]
    low, high = (float(told.min()), float(told.max())) if told.size else (1.0, 1.0)
    # Logarithmic from a factor of 10 on, but a logarithm has no 0.
    scale = LogNorm if low > 0 and high > 10 * low else Normalize
    image = axes.imshow(shown, cmap=look.colors, norm=scale(vmin=low, vmax=high))
    axes.set_title(look.title)
    ends = _ends(cluster)
    for _, stop in ends[:-1]:
        # Cells are centred on whole numbers: their borders are halves.
        axes.axhline(stop - 0.5, color="white", linewidth=0.8)
        axes.axvline(stop - 0.5, color="white", linewidth=0.8)
    starts = [0, *(stop for _, stop in ends[:-1])]
    middles = [(start + stop - 1) / 2 for start, (_, stop) in zip(starts, ends, strict=True)]
    names = [name for name, _ in ends]
    axes.set_xticks(middles, names, rotation=45, ha="right")
    axes.set_yticks(middles, names)
    figure.colorbar(image, ax=axes, shrink=0.9)


def _ends(cluster: Cluster) -> list[tuple[str, int]]:
    """Return each run of devices of one region, and the device after its last."""
    ends: list[tuple[str, int]] = []
    for number, device in enumerate(cluster.devices, start=1):
        if ends and ends[-1][0] == device.region:
            ends.pop()
        ends.append((device.region, number))
    return ends
