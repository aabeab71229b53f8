"""Communication between ranks: transports and collectives.

Nothing here needs an MPI: import `MpiTransport` from `jaxpipe.comm.mpi.mpi_transport`.
"""

from jaxpipe.comm.byte_counter import CountingTransport
from jaxpipe.comm.clock_sync import clock_offset
from jaxpipe.comm.collective import WireFormat
from jaxpipe.comm.collective.all_reduce import (
    all_reduce,
    all_reduce_bytes,
    all_reduce_with_feedback,
)
from jaxpipe.comm.collective.async_all_reduce import (
    AllReduceHandle,
    AllReducer,
    AsyncAllReduce,
    PendingAllReduce,
)
from jaxpipe.comm.collective.exchange import (
    all_gather,
    all_to_all,
    broadcast,
    reduce_scatter,
)
from jaxpipe.comm.collective.gather_broadcast import (
    barrier,
    broadcast_bytes,
    exchange_bytes,
    first_text,
    gather_bytes,
    receive_bytes,
    send_bytes,
)
from jaxpipe.comm.collective.native import native_of
from jaxpipe.comm.compressed import CompressedTransport
from jaxpipe.comm.local import LocalTransport, LocalWorld, run_ranks
from jaxpipe.comm.message_log import LoggedTransport, MessageLog
from jaxpipe.comm.receive_jax import Arrival, receive_jax
from jaxpipe.comm.shaped import ShapedTransport
from jaxpipe.comm.subset_transport import SubsetTransport
from jaxpipe.comm.tags import (
    ALL_REDUCE_TAG,
    BARRIER_TAG,
    BROADCAST_TAG,
    CONTROL_TAG,
    FILE_TAG,
    GATHER_TAG,
    NORM_TAG,
    NUM_MESSAGE_TAGS,
    OUTER_TAG,
    SAVE_TAG,
    STATE_TRANSFER_TAG,
)
from jaxpipe.comm.transport import (
    HostOrDeviceArray,
    Receiving,
    Sending,
    SurvivingTransport,
    Transport,
    closing,
)

__all__ = [
    "ALL_REDUCE_TAG",
    "BARRIER_TAG",
    "BROADCAST_TAG",
    "CONTROL_TAG",
    "FILE_TAG",
    "GATHER_TAG",
    "NORM_TAG",
    "NUM_MESSAGE_TAGS",
    "OUTER_TAG",
    "SAVE_TAG",
    "STATE_TRANSFER_TAG",
    "AllReduceHandle",
    "AllReducer",
    "Arrival",
    "AsyncAllReduce",
    "CompressedTransport",
    "CountingTransport",
    "HostOrDeviceArray",
    "LocalTransport",
    "LocalWorld",
    "LoggedTransport",
    "MessageLog",
    "PendingAllReduce",
    "Receiving",
    "Sending",
    "ShapedTransport",
    "SubsetTransport",
    "SurvivingTransport",
    "Transport",
    "WireFormat",
    "all_gather",
    "all_reduce",
    "all_reduce_bytes",
    "all_reduce_with_feedback",
    "all_to_all",
    "barrier",
    "broadcast",
    "broadcast_bytes",
    "clock_offset",
    "closing",
    "exchange_bytes",
    "first_text",
    "gather_bytes",
    "native_of",
    "receive_bytes",
    "receive_jax",
    "reduce_scatter",
    "run_ranks",
    "send_bytes",
]
