"""Start and end of a rank: pin it first, close its transport last."""

import json
import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from jaxpipe.runtime.process.affinity import pin
from jaxpipe.runtime.process.process_signals import die_with_parent


def run(program: Callable[[Any, Mapping[str, Any]], Any]) -> None:
    """Call `program` with the transport and the task; write what rank 0 returns as the result."""
    die_with_parent()
    pin(os.environ)  # before jax is imported: XLA sizes its thread pools by the affinity
    from jaxpipe.comm.mpi.mpi_transport import MpiTransport

    folder = Path(sys.argv[1])
    transport = MpiTransport()
    try:
        result = program(transport, json.loads((folder / "task.json").read_text()))
        if transport.rank == 0:
            (folder / "result.json").write_text(json.dumps(result))
    except BaseException as error:
        transport.close(error=error)
        raise
    transport.close()
