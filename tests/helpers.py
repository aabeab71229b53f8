"""All implementations of each interface, and how this machine starts the ranks of an MPI job."""

import os
import sys
from collections.abc import Callable
from functools import cache

import numpy as np

from jaxpipe import topo
from jaxpipe.collective.codec.aligned import aligned_empty
from jaxpipe.comm import (
    CompressedTransport,
    CountingTransport,
    LoggedTransport,
    MessageLog,
    ShapedTransport,
    SubsetTransport,
    Transport,
    run_ranks,
)
from jaxpipe.runtime.process.compile_cache import publish
from jaxpipe.runtime.process.mpirun import find_mpirun, launch_command
from tests import MPI_FOLDER

RunRanks = Callable[[int, Callable[[Transport], object]], list[object]]


def _run_counted(num_ranks: int, work: Callable[[Transport], object]) -> list[object]:
    def work_counted(transport: Transport) -> object:
        logged = LoggedTransport(transport, MessageLog(rank=transport.rank))
        return work(CountingTransport(logged))

    return run_ranks(num_ranks, work_counted)


class ExactCodec:
    """Loses nothing and shortens nothing: a transport that encodes with it is like any other."""

    def num_bytes(self, *, size: int) -> int:
        return 4 * size

    def encode(self, values: np.ndarray) -> np.ndarray:
        return values.copy().view(np.uint8)

    def decode(self, encoded: np.ndarray, *, size: int) -> np.ndarray:
        values = aligned_empty((size,), np.float32)
        values[...] = encoded.view(np.float32)
        return values


def _run_coded(num_ranks: int, work: Callable[[Transport], object]) -> list[object]:
    def work_coded(transport: Transport) -> object:
        coded = CompressedTransport(transport, dict.fromkeys(range(num_ranks), ExactCodec()))
        try:
            return work(coded)
        finally:
            coded.close()

    return run_ranks(num_ranks, work_coded)


def _run_shaped(num_ranks: int, work: Callable[[Transport], object]) -> list[object]:
    cluster = topo.load("two-region")

    def work_shaped(transport: Transport) -> object:
        shaped = ShapedTransport(transport, cluster, devices=range(num_ranks), scale=0.02)
        result = work(shaped)
        shaped.close()
        return result

    return run_ranks(num_ranks, work_shaped)


def _run_subset(num_ranks: int, work: Callable[[Transport], object]) -> list[object]:
    members = range(num_ranks)  # errors name ranks of the whole: those of the subset are the same

    def work_in_subset(transport: Transport) -> object:
        is_member = transport.rank in members
        return work(SubsetTransport(transport, members=members)) if is_member else None

    return run_ranks(num_ranks + 1, work_in_subset)[:num_ranks]


IN_PROCESS_TRANSPORTS: dict[str, RunRanks] = {
    "local": run_ranks,
    "counted": _run_counted,
    "coded": _run_coded,
    "shaped": _run_shaped,
    "subset": _run_subset,
}


@cache
def _launcher(num_ranks: int) -> tuple[str, ...]:
    mpirun, *options = launch_command(find_mpirun(), num_ranks=num_ranks)
    # A killed `mpirun` leaves `ompi.PID` in its temporary folder, and a later one with the same
    # process id would fail. As options: in the environment they would also replace the folder that
    # jaxpipe's own launcher makes for each job.
    is_open_mpi = "--oversubscribe" in options
    folder = ("--prtemca", "prte_tmpdir_base", os.environ[MPI_FOLDER]) if is_open_mpi else ()
    return (mpirun, *folder, *options)


def mpi_command(num_ranks: int, *arguments: str) -> list[str]:
    """Return the command that runs this Python with `arguments` on `num_ranks` ranks."""
    return [*_launcher(num_ranks), sys.executable, *arguments]


def mpi_environment() -> dict[str, str]:
    """Return the environment of an MPI job that has more ranks than this machine has cores.

    Its ranks can read what this process has compiled until now.
    """
    publish(os.environ)
    return os.environ | {"MPIR_CVAR_ENABLE_HEAVY_YIELD": "1"}
