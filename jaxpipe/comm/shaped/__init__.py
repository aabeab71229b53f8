"""Emulated links: real messages, delayed as the links of a cluster would delay them."""

from jaxpipe.comm.shaped.links import EmulatedLinks, Passage
from jaxpipe.comm.shaped.timer import Timer
from jaxpipe.comm.shaped.transport import ShapedTransport

__all__ = ["EmulatedLinks", "Passage", "ShapedTransport", "Timer"]
