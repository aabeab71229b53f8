"""One rank of an MPI job: run the checks of the conformance suite, and report each by name."""

import json
import sys
import traceback
from collections.abc import Callable
from pathlib import Path

from jaxpipe.comm.mpi.mpi_transport import MpiTransport
from jaxpipe.comm.transport import Transport
from tests.comm.checks import CHECKS


def verdict(check: Callable[[Transport], None], transport: Transport) -> str:
    try:
        check(transport)
    except BaseException:
        return traceback.format_exc()
    return "passed"


def main(folder: Path) -> None:
    transport = MpiTransport()
    path = folder / f"{transport.rank}.jsonl"
    with path.open("w", buffering=1) as report:
        for check in CHECKS:
            outcome = verdict(check, transport)
            report.write(json.dumps({"check": check.__name__, "outcome": outcome}) + "\n")
            if outcome != "passed":
                transport.close(error=RuntimeError(f"{check.__name__} failed"))
    transport.close()
    (folder / f"{transport.rank}.closed").touch()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
