"""One rank of the checkpointing measurement, pinned to its own core like the ranks of a run."""

import os
import sys
from pathlib import Path

import msgspec

from jaxpipe.runtime.process.affinity import pin
from jaxpipe.runtime.process.process_signals import die_with_parent

if __name__ == "__main__":
    die_with_parent()
    pin(os.environ)  # before jax is imported: XLA sizes its thread pools by the affinity
    from experiments.faults.saving_blocks import Task, measure
    from jaxpipe.comm.mpi.mpi_transport import MpiTransport

    task = msgspec.json.decode(sys.argv[1], type=Task)
    transport = MpiTransport()
    result = measure(task, transport)
    if transport.rank == 0:
        Path(task.out).write_bytes(msgspec.json.encode(result))
    transport.close()
