"""One rank of an MPI job: train by the configuration of a JSON file."""

import json
import sys
from pathlib import Path

from jaxpipe.comm.mpi.mpi_transport import MpiTransport
from jaxpipe.config import config_from, job_from
from jaxpipe.propose.resolve import plan_from
from jaxpipe.runtime.train import train


def main(tree: Path) -> None:
    config = config_from(json.loads(tree.read_text()))
    job = job_from(config, plan_from(config))
    transport = MpiTransport()
    try:
        train(job, transport, checkpoint=None, observe=lambda _: None)
    except BaseException as error:
        transport.close(error=error)
        raise
    transport.close()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
