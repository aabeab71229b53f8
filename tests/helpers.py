"""All implementations of each interface, and how this machine starts the ranks of an MPI job."""

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path

from jaxpipe.comm import CountedTransport, Transport, run_ranks

RunRanks = Callable[[int, Callable[[Transport], object]], list[object]]


def _run_counted(num_ranks: int, work: Callable[[Transport], object]) -> list[object]:
    return run_ranks(num_ranks, lambda transport: work(CountedTransport(transport)))


IN_PROCESS_TRANSPORTS: dict[str, RunRanks] = {"local": run_ranks, "counted": _run_counted}


@cache
def _mpirun() -> tuple[str, ...]:
    """The mpirun beside this Python, or else the machine's, with what this machine needs."""
    beside = Path(sys.executable).parent / "mpirun"
    program = str(beside) if beside.exists() else shutil.which("mpirun")
    assert program is not None, "there is no mpirun"
    version = subprocess.run([program, "--version"], capture_output=True, text=True, check=True)
    if "Open MPI" not in version.stdout:
        return (program,)
    root = ("--allow-run-as-root",) if os.geteuid() == 0 else ()
    return (program, *root, "--map-by", ":OVERSUBSCRIBE", "--bind-to", "none")


def mpi_command(num_ranks: int, *arguments: str) -> list[str]:
    """Return the command that runs this Python with `arguments` on `num_ranks` ranks."""
    return [*_mpirun(), "-n", str(num_ranks), sys.executable, *arguments]


def mpi_environment() -> dict[str, str]:
    """Return the environment of an MPI job that has more ranks than this machine has cores."""
    return os.environ | {"MPIR_CVAR_ENABLE_HEAVY_YIELD": "1"}
