"""Collectives of arrays over any transport: the executor of their steps, and their wire formats."""

from jaxpipe.comm.collective.execute_steps import Execution, Formats
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
