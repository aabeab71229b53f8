"""The price of an outer loop in loss, from published scaling laws, as a factor on the compute.

An outer loop of M islands ends at a higher loss than data parallelism after the same tokens. How
much longer it has to train for the same loss follows from how the loss falls with compute C::

    loss ~ C^-s between two published sizes,   C ~ N^2 at 20 tokens a parameter
    a loss higher by the fraction g            costs the factor (1 + g)^(1 / s) in compute

The published runs took an outer step every 30 steps. Between published sizes and numbers of islands
gaps are interpolated in their logarithms; beyond the sizes the gap of the nearest one is taken.

Source: arXiv 2503.09799; the numbers are in `data/loss_by_islands.toml`. The factor is ours.
"""

import tomllib
from bisect import bisect
from dataclasses import dataclass
from functools import cache
from importlib import resources
from itertools import pairwise
from math import log, log2

PUBLISHED_EVERY = 30
"""The inner steps per outer step of the published runs."""
_LEAST_EVERY = 10
"""Islands that meet oftener were not published."""
_LEAST_MEETINGS = 10
"""An outer momentum of 0.9 averages over about ten outer steps. This is a choice, not a fit."""
COVERED_STEPS = (
    f"a multiple of a number from {_LEAST_EVERY} to {PUBLISHED_EVERY}, after which islands meet, "
    f"and {_LEAST_MEETINGS} times that number or more"
)
"""The steps of a run to which the law applies, in words."""


def meeting_every(steps: int) -> int | None:
    """Return after how many steps islands meet in a run; None if the law does not cover it.

    >>> meeting_every(3000), meeting_every(100), meeting_every(30)
    (30, 10, None)
    """
    most = min(PUBLISHED_EVERY, steps // _LEAST_MEETINGS)
    return max((n for n in range(_LEAST_EVERY, most + 1) if steps % n == 0), default=None)


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedSize:
    """The losses of a model of `parameters`, of data parallelism and by the number of islands."""

    parameters: float
    data_parallel: float
    by_islands: dict[int, float]

    def gap(self, islands: int) -> float | None:
        """Return how much higher the loss is than that of data parallelism, as a fraction of it.

        None for more islands than were published.
        """
        known = sorted(self.by_islands)
        if islands > known[-1]:
            return None
        above = next(count for count in known if count >= islands)
        if above == islands:
            return self._published_gap(islands)
        below = known[known.index(above) - 1]
        part = (log2(islands) - log2(below)) / (log2(above) - log2(below))
        return (1 - part) * self._published_gap(below) + part * self._published_gap(above)

    def _published_gap(self, islands: int) -> float:
        return self.by_islands[islands] / self.data_parallel - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class LossPrice:
    """The gap in loss, and the factor on compute for equal loss.

    `is_published` is False beyond the published sizes, where the nearest one stands in.
    """

    gap: float
    compute_factor: float
    is_published: bool


@cache
def published_sizes() -> tuple[PublishedSize, ...]:
    """Return the published losses, smallest model first."""
    file = resources.files("jaxpipe.outer") / "data" / "loss_by_islands.toml"
    rows = tomllib.loads(file.read_text())["size"]
    return tuple(
        PublishedSize(
            parameters=row["parameters"],
            data_parallel=row["data_parallel"],
            by_islands={int(islands): loss for islands, loss in row["islands"].items()},
        )
        for row in rows
    )


def loss_price(*, num_parameters: float, islands: int) -> LossPrice | None:
    """Return the price of an outer loop; None for more islands than were published.

    >>> price = loss_price(num_parameters=1.3e9, islands=8)
    >>> f"{price.gap:.2%} {price.compute_factor:.2f}"
    '1.34% 1.34'
    """
    sizes = [size for size in published_sizes() if size.gap(islands) is not None]
    if not sizes:
        return None
    first, last = sizes[0].parameters, sizes[-1].parameters
    within = min(max(num_parameters, first), last)
    gap = _interpolated_gap(sizes, within, islands)
    return LossPrice(
        gap=gap,
        compute_factor=compute_factor(gap, num_parameters=within),
        is_published=first <= num_parameters <= last,
    )


def compute_factor(gap: float, *, num_parameters: float) -> float:
    """Return the factor on compute that makes up for a loss that is higher by a fraction, `gap`.

    Beyond the published sizes the nearest ones say how the loss falls with compute.

    >>> f"{compute_factor(0.0134, num_parameters=1.3e9):.2f}"
    '1.34'
    """
    return (1 + gap) ** (1 / _exponent(num_parameters))


def _interpolated_gap(sizes: list[PublishedSize], parameters: float, islands: int) -> float:
    gaps = [size.gap(islands) or 0.0 for size in sizes]
    for (below, above), (low, high) in zip(pairwise(sizes), pairwise(gaps), strict=True):
        if parameters <= above.parameters:
            part = log(parameters / below.parameters) / log(above.parameters / below.parameters)
            return (1 - part) * low + part * high
    return gaps[-1]


def _exponent(parameters: float) -> float:
    """Return s of loss ~ C^-s, between the published sizes around a number of parameters."""
    sizes = published_sizes()
    position = bisect([size.parameters for size in sizes], parameters)
    above = min(max(position, 1), len(sizes) - 1)
    low, high = sizes[above - 1], sizes[above]
    return log(low.data_parallel / high.data_parallel) / (2 * log(high.parameters / low.parameters))
