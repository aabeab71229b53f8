"""Pictures: one canvas and one palette for all of them; losses, and clusters as matrix and map."""

from jaxpipe.pictures.axis_units import Unit, plain_number, time_unit, unit_for
from jaxpipe.pictures.canvas import FORMATS, check_format, new_figure, save

__all__ = [
    "FORMATS",
    "Unit",
    "check_format",
    "new_figure",
    "plain_number",
    "save",
    "time_unit",
    "unit_for",
]
