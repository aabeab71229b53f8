"""How bytes move between ranks.

`MpiTransport` is imported from `jaxpipe.comm.mpi.transport` by those who need it: nothing here needs an MPI.
"""

from jaxpipe.comm.byte_counter import CountedTransport
from jaxpipe.comm.clock_sync import clock_offset
from jaxpipe.comm.codec import Codec, codec_of
from jaxpipe.comm.collective import Wire
from jaxpipe.comm.collective.all_gather import all_gather
from jaxpipe.comm.collective.all_reduce import all_reduce, all_reduce_with_feedback
from jaxpipe.comm.collective.async_all_reduce import Reducer, ReduceWorker, Reducing, Sum
from jaxpipe.comm.collective.gather_broadcast import barrier, broadcast_bytes, gather_bytes
from jaxpipe.comm.collective.native import library_of
from jaxpipe.comm.compressed import CodedTransport
from jaxpipe.comm.local import LocalTransport, LocalWorld, run_ranks
from jaxpipe.comm.receive_jax import Arrival, receive_jax
from jaxpipe.comm.shaped import ShapedTransport
from jaxpipe.comm.tags import (
    ALL_REDUCE_TAG,
    BARRIER_TAG,
    BROADCAST_TAG,
    GATHER_TAG,
    HAND_OVER_TAG,
    NUM_MESSAGE_TAGS,
    SAVE_TAG,
)
from jaxpipe.comm.transport import (
    HostOrDeviceArray,
    Receiving,
    Sending,
    SurvivingTransport,
    Transport,
)

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
