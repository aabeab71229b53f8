"""From which checkpoint all ranks go on: the one that rank 0 has found intact."""

from pathlib import Path

from jaxpipe.comm import BROADCAST_TAG, Transport, broadcast_bytes
from jaxpipe.runtime.checkpoint import Checkpoint, open_checkpoint


def agree_on_checkpoint(
    transport: Transport, found: Checkpoint | None, *, timeout_s: float
) -> Checkpoint:
    """Return the checkpoint that rank 0 has `found`, opened, on all ranks; others pass None.

    Which of several checkpoints is broken is for one rank to say: two that read at different times
    could choose differently, and would train different models.

    Raises:
        CheckpointError: the manifest cannot be read here, because the hosts do not share it.
        DeadlineError: rank 0 does not say it in time.
    """
    name = None if transport.rank else str(_required(found).folder).encode()
    folder = broadcast_bytes(transport, name, root=0, tag=BROADCAST_TAG, timeout_s=timeout_s)
    return open_checkpoint(Path(folder.decode()))


def _required(found: Checkpoint | None) -> Checkpoint:
    assert found is not None, "rank 0 has to find a checkpoint"
    return found
