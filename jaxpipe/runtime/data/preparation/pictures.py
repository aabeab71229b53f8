"""Labelled pictures: a folder with a subfolder per class, or glyphs that are drawn from fonts.

Pillow is an optional dependency, which comes with matplotlib; only these functions import it.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import UInt8

from jaxpipe.errors import DataError
from jaxpipe.foreign_file import open_regular
from jaxpipe.runtime.data.preparation.labelled import Labelled, smallest_unsigned

_MOST_PIXELS = 4096
"""Of a side: all pictures are in memory."""
_SUFFIXES = frozenset((".bmp", ".gif", ".jpeg", ".jpg", ".png", ".webp"))
_GLYPHS = "0123456789"
_MOST_DEGREES = 25
_LARGEST, _SMALLEST = 0.95, 0.6  # of the side of a picture
_NOISE = 12  # standard deviation, of 255


def read_pictures(folder: Path, *, size: int) -> Labelled:
    """Return the pictures of a folder in memory, scaled to squares of `size` pixels, in colours.

    The classes are the names of its subfolders, sorted, in which pictures are found at all depths.

    Raises:
        DataError: there are no pictures in subfolders, or one cannot be read; or Pillow is missing.
    """
    image = _pillow("Image")
    _check_size(size)
    found = [
        (path, path.relative_to(folder).parts[0])
        for path in sorted(folder.glob("*/**/*"))
        if path.suffix.lower() in _SUFFIXES and path.is_file()
    ]
    if not found:
        raise DataError(
            f"`source` must be a folder of subfolders with pictures ({', '.join(sorted(_SUFFIXES))}"
            f"), one for each class; {folder} has none; name another"
        )
    classes = tuple(sorted({label for _, label in found}))
    inputs = np.empty((len(found), size, size, 3), np.uint8)
    for row, (path, _) in zip(inputs, found, strict=True):
        try:
            with open_regular(path) as file, image.open(file) as picture:
                row[...] = np.asarray(picture.convert("RGB").resize((size, size)))
        except (OSError, ValueError, image.DecompressionBombError) as error:
            raise DataError(
                f"`source` must hold intact pictures; {path} is none: {error}; remove it"
            ) from None
    return _labelled(inputs, [classes.index(label) for _, label in found], classes, folder.name)


def draw_glyphs(*, num_samples: int, size: int, seed: int = 0) -> Labelled:
    """Return pictures of the ten digits: in many fonts, sizes, angles and colours, with noise.

    The fonts are those that come with matplotlib. Digits take turns, so that classes are of equal
    size. Equal arguments give equal pictures with the same versions of Pillow and matplotlib.

    Raises:
        DataError: matplotlib is missing, or a size is too small.
    """
    _check_size(size)
    if num_samples < 1:
        raise DataError(f"`samples` must be at least 1, not {num_samples}")
    fonts = _fonts()
    random = np.random.default_rng(seed)
    labels = [n % len(_GLYPHS) for n in range(num_samples)]
    pictures = [_glyph(_GLYPHS[label], fonts, random, size=size) for label in labels]
    return _labelled(np.stack(pictures), labels, tuple(_GLYPHS), "digits in matplotlib's fonts")


def _glyph(
    glyph: str, fonts: Sequence[Path], random: np.random.Generator, *, size: int
) -> UInt8[np.ndarray, "size size 3"]:
    image, draw, font = _pillow("Image"), _pillow("ImageDraw"), _pillow("ImageFont")
    chosen = fonts[int(random.integers(len(fonts)))]
    points = size * random.uniform(_SMALLEST, _LARGEST)
    middle = size / 2 + random.uniform(-0.12, 0.12, 2) * size
    mask = image.new("L", (size, size))
    draw.Draw(mask).text(
        tuple(middle), glyph, fill=255, font=font.truetype(str(chosen), points), anchor="mm"
    )
    angle = random.uniform(-_MOST_DEGREES, _MOST_DEGREES)
    turned = mask.rotate(angle, resample=image.Resampling.BILINEAR)
    ink = np.asarray(turned, np.float64)[..., None] / 255
    # A light glyph on a dark ground: where either may be the lighter one, a small model needs more
    # than twice the steps to know a fifth of the digits (measured).
    ground, front = random.uniform(0, 100, 3), random.uniform(155, 255, 3)
    drawn = ink * front + (1 - ink) * ground + random.normal(scale=_NOISE, size=(size, size, 3))
    return np.clip(drawn, 0, 255).astype(np.uint8)


def _fonts() -> list[Path]:
    _pillow("ImageFont")
    try:
        from matplotlib import get_data_path
    except ImportError:
        raise _missing("matplotlib") from None
    folder = Path(get_data_path()) / "fonts" / "ttf"
    # Not the fonts of formulas and displays, most of which have no digits.
    fonts = sorted(p for p in folder.glob("DejaVu*.ttf") if "Display" not in p.name)
    if not fonts:
        raise DataError(f"matplotlib must have its fonts; {folder} has none; install it again")
    return fonts


def _pillow(module: str) -> Any:
    import importlib

    try:
        return importlib.import_module(f"PIL.{module}")
    except ImportError:
        raise _missing("Pillow") from None


def _missing(package: str) -> DataError:
    return DataError(
        f"pictures need {package}, which is not installed; install it with `pip install "
        "jaxpipe[plot]`"
    )


def _check_size(size: int) -> None:
    if not 4 <= size <= _MOST_PIXELS:
        raise DataError(f"`size` must be from 4 to {_MOST_PIXELS:,} pixels, not {size}")


def _labelled(
    inputs: UInt8[np.ndarray, "samples size size 3"],
    labels: Sequence[int],
    classes: tuple[str, ...],
    source: str,
) -> Labelled:
    numbers = smallest_unsigned(np.array(labels, np.int64), below=len(classes))
    return Labelled(inputs=inputs, labels=numbers, classes=classes, source=source)
