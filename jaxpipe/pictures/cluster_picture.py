"""A cluster as two matrices: latency and bandwidth of all ordered pairs, regions marked."""

from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np

from jaxpipe.pictures.axis_units import BANDWIDTHS, SECONDS, Unit, plain_number, unit_for
from jaxpipe.pictures.canvas import check_format, new_figure, plain_text, save
from jaxpipe.pictures.palette import SCALE
from jaxpipe.topo import Cluster

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.cm import ScalarMappable
    from matplotlib.figure import Figure

_SMALL: Final = 12
"""Matrices of more devices have no numbers in their cells."""


def draw_picture(cluster: Cluster, path: Path) -> None:
    """Draw the links of a cluster, 1200 pixels wide, as the PNG, SVG or PDF that `path` names.

    A row is a sender, a column a receiver. Bright is near or fast.

    Raises:
        UserError: matplotlib is missing, or the ending of the file names no format.
    """
    check_format(path)
    figure = new_figure(height_in=5.8)
    figure.suptitle(
        plain_text(f"{cluster.name}: {len(cluster):,} devices, from row to column"),
        fontweight="bold",
    )
    left, right = figure.subplots(1, 2)
    latency_s, bandwidth = (
        _without_diagonal(matrix) for matrix in (cluster.latency_s, cluster.bandwidth_bytes_per_s)
    )
    ms = unit_for(latency_s.ravel(), SECONDS[:2])
    _panel(figure, left, cluster, latency_s, "latency", ms, f"{SCALE}_r")
    gbps = unit_for(bandwidth.ravel(), BANDWIDTHS[1:])
    _panel(figure, right, cluster, bandwidth, "bandwidth", gbps, SCALE)
    save(figure, path)


def _without_diagonal(values: np.ndarray) -> np.ndarray:
    """Return the values between different devices; the diagonal would take the whole scale."""
    shown = values.astype(float)
    np.fill_diagonal(shown, np.nan)
    return shown


def _panel(
    figure: "Figure",
    axes: "Axes",
    cluster: Cluster,
    values: np.ndarray,
    name: str,
    unit: Unit,
    colors: str,
) -> None:
    shown = values / unit.size
    is_logarithmic, low, high = _scale(shown)
    image = axes.imshow(shown, cmap=colors, norm=_norm(is_logarithmic, low=low, high=high))
    title = f"{name}, {unit.name}"
    axes.set_title(f"{title} (logarithmic colours)" if is_logarithmic else title)
    _mark_regions(axes, cluster)
    if len(cluster) <= _SMALL:
        _write_numbers(axes, shown, image)
    if low < high:  # one value needs no bar
        from matplotlib.ticker import FuncFormatter

        bar = figure.colorbar(
            image, ax=axes, shrink=0.9, format=FuncFormatter(lambda x, _: plain_number(x))
        )
        bar.ax.minorticks_off()
        bar.set_ticks(_ticks(is_logarithmic, low=low, high=high))


def _scale(shown: np.ndarray) -> tuple[bool, float, float]:
    """Return whether colours are logarithmic, and the smallest and the largest value."""
    known = shown[np.isfinite(shown)]
    low, high = (float(known.min()), float(known.max())) if known.size else (1.0, 1.0)
    # Logarithmic from a factor of 10 on, but a logarithm has no 0.
    return low > 0 and high > 10 * low, low, high


def _norm(is_logarithmic: bool, *, low: float, high: float):
    from matplotlib.colors import LogNorm, Normalize

    return (LogNorm if is_logarithmic else Normalize)(vmin=low, vmax=high)


def _ticks(is_logarithmic: bool, *, low: float, high: float) -> list[float]:
    spaced = np.geomspace if is_logarithmic else np.linspace
    return [float(tick) for tick in spaced(low, high, 5)]


def _write_numbers(axes: "Axes", shown: np.ndarray, image: "ScalarMappable") -> None:
    """Write each value into its cell, dark on bright and bright on dark."""
    size = 10.0 if len(shown) <= 6 else 7.0
    for (row, column), value in np.ndenumerate(shown):
        if np.isnan(value):
            continue
        red, green, blue, _ = np.ravel(image.to_rgba(value))
        is_bright = 0.299 * red + 0.587 * green + 0.114 * blue > 0.5
        color = "black" if is_bright else "white"
        axes.text(
            column, row, plain_number(value), ha="center", va="center", color=color, fontsize=size
        )


def _mark_regions(axes: "Axes", cluster: Cluster) -> None:
    ends = _ends(cluster)
    for _, stop in ends[:-1]:
        # Cells are centred on whole numbers: their borders are halves.
        axes.axhline(stop - 0.5, color="white", linewidth=1.2)
        axes.axvline(stop - 0.5, color="white", linewidth=1.2)
    starts = [0, *(stop for _, stop in ends[:-1])]
    middles = [(start + stop - 1) / 2 for start, (_, stop) in zip(starts, ends, strict=True)]
    names = [name for name, _ in ends]
    axes.set_xticks(middles, names, rotation=45, ha="right", parse_math=False)
    axes.set_yticks(middles, names, parse_math=False)
    axes.tick_params(length=0)


def _ends(cluster: Cluster) -> list[tuple[str, int]]:
    """Return each run of devices of one region, and the device after its last."""
    ends: list[tuple[str, int]] = []
    for number, device in enumerate(cluster.devices, start=1):
        if ends and ends[-1][0] == device.region:
            ends.pop()
        ends.append((device.region, number))
    return ends
