"""All implementations of each interface, and how this machine starts the ranks of an MPI job."""

import os
import sys
from collections.abc import Callable
from functools import cache

from jaxpipe.comm import CountedTransport, Transport, run_ranks
from jaxpipe.runtime.launch import find_mpirun, launch_command

RunRanks = Callable[[int, Callable[[Transport], object]], list[object]]


def _run_counted(num_ranks: int, work: Callable[[Transport], object]) -> list[object]:
    return run_ranks(num_ranks, lambda transport: work(CountedTransport(transport)))


IN_PROCESS_TRANSPORTS: dict[str, RunRanks] = {"local": run_ranks, "counted": _run_counted}


@cache
def _launcher(num_ranks: int) -> tuple[str, ...]:
    return launch_command(find_mpirun(), num_ranks=num_ranks)


def mpi_command(num_ranks: int, *arguments: str) -> list[str]:
    """Return the command that runs this Python with `arguments` on `num_ranks` ranks."""
    return [*_launcher(num_ranks), sys.executable, *arguments]


def mpi_environment() -> dict[str, str]:
    """Return the environment of an MPI job that has more ranks than this machine has cores."""
    return os.environ | {"MPIR_CVAR_ENABLE_HEAVY_YIELD": "1"}
