"""How bytes move between ranks.

`MpiTransport` is imported from `jaxpipe.comm.mpi` by those who need it: nothing here needs an MPI.
"""

from jaxpipe.comm.all_gather import all_gather
from jaxpipe.comm.all_reduce import all_reduce, all_reduce_with_feedback
from jaxpipe.comm.arrival import Arrival, receive_jax
from jaxpipe.comm.clock import clock_offset
from jaxpipe.comm.codec import Codec, codec_of
from jaxpipe.comm.coded import CodedTransport
from jaxpipe.comm.collective import Wire
from jaxpipe.comm.collective.library import library_of
from jaxpipe.comm.counted import CountedTransport
from jaxpipe.comm.gather import barrier, broadcast_bytes, gather_bytes
from jaxpipe.comm.local import LocalTransport, LocalWorld, run_ranks
from jaxpipe.comm.reduce_worker import Reducer, ReduceWorker, Reducing, Sum
from jaxpipe.comm.shaped import ShapedTransport
from jaxpipe.comm.surviving import SurvivingTransport
from jaxpipe.comm.tags import (
    ALL_REDUCE_TAG,
    BARRIER_TAG,
    BROADCAST_TAG,
    GATHER_TAG,
    HAND_OVER_TAG,
    NUM_MESSAGE_TAGS,
    SAVE_TAG,
)
from jaxpipe.comm.transport import HostOrDeviceArray, Receiving, Sending, Transport

__all__ = [
    "ALL_REDUCE_TAG",
    "BARRIER_TAG",
    "BROADCAST_TAG",
    "GATHER_TAG",
    "HAND_OVER_TAG",
    "NUM_MESSAGE_TAGS",
    "SAVE_TAG",
    "Arrival",
    "Codec",
    "CodedTransport",
    "CountedTransport",
    "HostOrDeviceArray",
    "LocalTransport",
    "LocalWorld",
    "Receiving",
    "ReduceWorker",
    "Reducer",
    "Reducing",
    "Sending",
    "ShapedTransport",
    "Sum",
    "SurvivingTransport",
    "Transport",
    "Wire",
    "all_gather",
    "all_reduce",
    "all_reduce_with_feedback",
    "barrier",
    "broadcast_bytes",
    "clock_offset",
    "codec_of",
    "gather_bytes",
    "library_of",
    "receive_jax",
    "run_ranks",
]
