"""Shaped: a transport that delays real messages as the links of a cluster would."""

from jaxpipe.comm.shaped.shaped_links import links_of_rank
from jaxpipe.comm.shaped.shaped_transport import ShapedTransport
from jaxpipe.comm.shaped.timer import Timer

__all__ = ["ShapedTransport", "Timer", "links_of_rank"]
