"""Broadcast of the checkpoint that rank 0 has chosen; not in the package, which needs no jax."""

from jaxpipe.comm import BROADCAST_TAG, Transport, broadcast_bytes
from jaxpipe.runtime.checkpoint import Checkpoint, open_checkpoint
from jaxpipe.runtime.storage.object_folder import folder_named


def agree_on_checkpoint(
    transport: Transport, found: Checkpoint | None, *, timeout_s: float
) -> Checkpoint | None:
    """Open the checkpoint that rank 0 has `found` on all ranks, if any; the others pass None.

    One rank chooses among several: ranks that read at different times could find different ones
    broken, and would train different models.

    Raises:
        CheckpointError: the manifest cannot be read here, because the hosts do not share it.
        DeadlineError: rank 0 did not answer in time.
    """
    name = None
    if transport.rank == 0:
        name = b"" if found is None else str(found.folder).encode()  # a broadcast has a payload
    folder = broadcast_bytes(transport, name, root=0, tag=BROADCAST_TAG, timeout_s=timeout_s)
    return open_checkpoint(folder_named(folder.decode())) if folder else None
