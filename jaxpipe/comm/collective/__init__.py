"""All-reduces as data: what each rank sends, adds and takes, and what carries it out."""

from jaxpipe.comm.collective.execute import Execution, Formats
from jaxpipe.comm.collective.format import CodecFormat, Format, ValueFormat
from jaxpipe.comm.collective.library import SumsInLibrary
from jaxpipe.comm.collective.program import steps_of
from jaxpipe.comm.collective.step import Act, Step
from jaxpipe.comm.collective.wire import Wire

__all__ = [
    "Act",
    "CodecFormat",
    "Execution",
    "Format",
    "Formats",
    "Step",
    "SumsInLibrary",
    "ValueFormat",
    "Wire",
    "steps_of",
]
