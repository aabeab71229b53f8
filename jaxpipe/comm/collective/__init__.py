"""All-reduces as data: what each rank sends, adds and takes, and what carries it out."""

from jaxpipe.comm.collective.execute import Execution, Formats
from jaxpipe.comm.collective.native import NativeAllReduce
from jaxpipe.comm.collective.wire_format import CodecFormat, Format, ValueFormat, WireFormat

__all__ = [
    "CodecFormat",
    "Execution",
    "Format",
    "Formats",
    "NativeAllReduce",
    "ValueFormat",
    "WireFormat",
]
