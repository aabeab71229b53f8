"""What a rank does to its own process before jax and MPI start: it is pinned, and dies in time."""

import ctypes
import os
import signal
import sys
from collections.abc import Mapping

_PR_SET_PDEATHSIG = 1
_LOCAL_RANK_AND_SIZE = (
    ("OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE"),
    ("MPI_LOCALRANKID", "MPI_LOCALNRANKS"),
)


def die_with_parent(number: int = signal.SIGKILL) -> None:
    """Make Linux send this process a signal when its launcher dies, however that dies."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, number)


def pin(environment: Mapping[str, str]) -> None:
    """Pin this rank to a core of its own, where its host has one for each of its ranks.

    A launcher that has bound its ranks already is not overruled. XLA makes as many threads as
    the process has cores, so this comes before jax.
    """
    if not hasattr(os, "sched_setaffinity"):
        return
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) < (os.cpu_count() or 1):
        return
    core = core_of(environment, cores)
    if core is not None:
        os.sched_setaffinity(0, {core})


def core_of(environment: Mapping[str, str], cores: list[int]) -> int | None:
    """Return the core for this rank, or None if there are more ranks than cores on its host.

    >>> core_of({"MPI_LOCALRANKID": "1", "MPI_LOCALNRANKS": "2"}, [4, 6])
    6
    >>> core_of({"MPI_LOCALRANKID": "1", "MPI_LOCALNRANKS": "3"}, [4, 6])
    """
    for rank, size in _LOCAL_RANK_AND_SIZE:
        if rank in environment and size in environment:
            fits = int(environment[size]) <= len(cores)
            return cores[int(environment[rank])] if fits else None
    return None
