"""The palette of all pictures: colours that stay apart for colour-blind readers.

The hues are those of Okabe and Ito, "Color Universal Design", 2008, with a lighter one and greys. A
test simulates three kinds of colour blindness, and measures the distances that are left.
"""

from types import MappingProxyType
from typing import Final

BLUE: Final = "#0072b2"
SKY: Final = "#56b4e9"
VERMILION: Final = "#d55e00"
ORANGE: Final = "#e69f00"
LIGHT_ORANGE: Final = "#f7dfa8"
GREEN: Final = "#009e73"
PURPLE: Final = "#cc79a7"
DARK: Final = "#4b5060"
GREY: Final = "#c3c6d1"
LINE: Final = "#e6e7ec"
BAND: Final = "#f6f7fa"

SERIES: Final = (BLUE, VERMILION, GREEN, PURPLE, ORANGE, SKY, DARK)
"""Lines and bars of equal rank, in this order."""

PARTS: Final = MappingProxyType(
    {
        "compute": SKY,
        "update": DARK,
        "activations": GREEN,
        "gradients": PURPLE,
        "waiting": GREY,
        "bubble": GREY,
        "host": ORANGE,
        "idle": LINE,
    }
)
"""What a step spends its time on, in the colours of the timeline."""

DASHES: Final = ("-", "--", "-.")

SCALE: Final = "viridis"
"""Colours of numbers, from dark to bright: they differ in lightness, also in print."""


def series_style(number: int) -> tuple[str, str]:
    """Return colour and dashes of the line with this number.

    Neighbours differ in both: of two equal curves, the one below is seen between the dashes.

    >>> series_style(0), series_style(1)
    (('#0072b2', '-'), ('#d55e00', '--'))
    """
    return SERIES[number % len(SERIES)], DASHES[number % len(DASHES)]
