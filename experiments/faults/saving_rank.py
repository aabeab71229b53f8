"""One rank of the measurement of saving, on a core of its own as the ranks of a run are."""

import os
import sys
from pathlib import Path

import msgspec

from jaxpipe.runtime.process.affinity import die_with_parent, pin

if __name__ == "__main__":
    die_with_parent()
    pin(os.environ)  # before jax, which makes as many threads as there are cores
    from experiments.faults.saving_blocks import Task, measure
    from jaxpipe.comm.mpi.transport import MpiTransport

    told = msgspec.json.decode(sys.argv[1], type=Task)
    here = MpiTransport()
    result = measure(told, here)
    if here.rank == 0:
        Path(told.out).write_bytes(msgspec.json.encode(result))
    here.close()
