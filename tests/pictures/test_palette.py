"""The palette stays apart for colour-blind readers, and in the timeline's legend."""

from itertools import combinations

import numpy as np
import pytest

from jaxpipe.pictures.palette import (
    DARK,
    GREEN,
    GREY,
    LIGHT_ORANGE,
    ORANGE,
    PURPLE,
    SERIES,
    SKY,
)

# Machado, Oliveira and Fernandes, "A Physiologically-based Model for Simulation of Color Vision
# Deficiency", 2009, severity 1.0, on linear RGB.
BLINDNESS = {
    "none": np.eye(3),
    "protanopia": np.array(
        [
            [0.152286, 1.052583, -0.204868],
            [0.114503, 0.786281, 0.099216],
            [-0.003882, -0.048116, 1.051998],
        ]
    ),
    "deuteranopia": np.array(
        [
            [0.367322, 0.860646, -0.227968],
            [0.280085, 0.672501, 0.047413],
            [-0.011820, 0.042940, 0.968881],
        ]
    ),
    "tritanopia": np.array(
        [
            [1.255528, -0.076749, -0.178779],
            [-0.078411, 0.930809, 0.147602],
            [0.004733, 0.691367, 0.303900],
        ]
    ),
}
TIMELINE = (SKY, ORANGE, LIGHT_ORANGE, DARK, GREEN, GREY, PURPLE)
OF_XYZ = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]])


def seen_lab(color: str, blindness: np.ndarray) -> np.ndarray:
    """Return a colour as it is seen, in CIE Lab: distances are about those that people see."""
    rgb = np.array([int(color[i : i + 2], 16) / 255 for i in (1, 3, 5)])
    linear = np.where(rgb <= 0.04045, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4)
    xyz = OF_XYZ @ np.clip(blindness @ linear, 0.0, 1.0) / OF_XYZ.sum(axis=1)
    x, y, z = np.where(xyz > 0.008856, np.cbrt(xyz), 7.787 * xyz + 16 / 116)
    return np.array([116 * y - 16, 500 * (x - y), 200 * (y - z)])


@pytest.mark.parametrize("blindness", BLINDNESS.values(), ids=BLINDNESS)
@pytest.mark.parametrize("colors", [TIMELINE, SERIES], ids=["timeline", "series"])
def test_colours_stay_apart(colors: tuple[str, ...], blindness: np.ndarray) -> None:
    seen = {color: seen_lab(color, blindness) for color in colors}
    distances = {
        pair: float(np.linalg.norm(seen[pair[0]] - seen[pair[1]]))
        for pair in combinations(colors, 2)
    }
    # About 2.3 is the least that people notice of large areas next to each other.
    assert min(distances.values()) > 15, min(distances, key=lambda pair: distances[pair])


def test_the_measure_finds_what_the_red_and_green_blind_confuse() -> None:
    red, green = "#c00000", "#6a6a00"
    plain, blind = (
        np.linalg.norm(seen_lab(red, BLINDNESS[kind]) - seen_lab(green, BLINDNESS[kind]))
        for kind in ("none", "protanopia")
    )
    assert blind < plain / 3
