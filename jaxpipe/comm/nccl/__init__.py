"""Transport from GPU to GPU over NCCL. Tested with a fake NCCL: not run between GPUs yet."""

from jaxpipe.comm.nccl.binding import Done, NcclBinding, NcclChannel
from jaxpipe.comm.nccl.nccl_available import find_binding, local_binding
from jaxpipe.comm.nccl.nccl_transport import NcclTransport

__all__ = [
    "Done",
    "NcclBinding",
    "NcclChannel",
    "NcclTransport",
    "find_binding",
    "local_binding",
]
