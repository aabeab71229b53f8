"""The canvas of all pictures: the one place that imports matplotlib, and that writes files.

::

    a.png   pixels, for a terminal's viewer or a README      a.svg, a.pdf   lines, for papers

matplotlib comes with the extra `plot`. No function here touches its global state.
"""

from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from jaxpipe.errors import ConfigError, UserError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FORMATS: Final = (".png", ".svg", ".pdf")
"""The endings of picture files; each names the format."""

DPI: Final = 100
WIDTH_IN: Final = 12.0
_NO_DATE: Final[dict[str, dict[str, Any]]] = {
    ".png": {},
    ".svg": {"Date": None},
    ".pdf": {"CreationDate": None},
}
"""The same picture is the same file."""


def check_format(path: Path, *, name: str = "path") -> None:
    """Check that a picture can be drawn into this file; `name` is that of the option.

    Raises:
        ConfigError: the ending of the file names no known format.
        UserError: matplotlib is missing.
    """
    if path.suffix.lower() not in FORMATS:
        raise ConfigError(
            f"`{name}` must end in the format of a picture, is {path}; choose from "
            f"{', '.join(FORMATS)}"
        )
    _figure_class()


def new_figure(*, width_in: float = WIDTH_IN, height_in: float) -> "Figure":
    """Return an empty figure, whose parts find their places by themselves.

    Raises:
        UserError: matplotlib is missing.
    """
    figure_class = _figure_class()

    from matplotlib.layout_engine import ConstrainedLayoutEngine

    layout = ConstrainedLayoutEngine(w_pad=0.12, h_pad=0.08)
    return figure_class(figsize=(width_in, height_in), dpi=DPI, layout=layout)


def save(figure: "Figure", path: Path) -> None:
    """Write a figure in the format that the ending of its file names.

    Raises:
        ConfigError: the ending names no known format.
    """
    check_format(path)

    import matplotlib as mpl

    # Without a salt, the names inside an SVG are random.
    with mpl.rc_context({"svg.hashsalt": "jaxpipe"}):
        figure.savefig(path, metadata=_NO_DATE[path.suffix.lower()])


def plain_text(text: str) -> str:
    r"""Return a text that matplotlib does not read as mathematics.

    >>> plain_text("runs/$1")
    'runs/\\$1'
    """
    return text.replace("$", r"\$")


def _figure_class() -> "type[Figure]":
    # `Figure`, not pyplot: that has a global state, and may look for a display.
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise UserError(
            "cannot draw a picture: matplotlib is not installed; run `pip install 'jaxpipe[plot]'`"
        ) from error
    return Figure
