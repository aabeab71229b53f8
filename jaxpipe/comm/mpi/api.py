"""The only import of mpi4py: start, end and abort MPI by calls instead of on import.

All later calls go through `Progress`, which admits one thread at a time, so that
`MPI_THREAD_SERIALIZED` is enough, the lowest level that allows several threads.

MPICH maps a file in `/dev/shm` into all ranks of a host at start, and removes it at the end. If the
ranks are killed, the file remains, some MiB each time. So its name is removed as soon as all ranks
have mapped it, which MPICH tolerates. (Open MPI's launcher removes the files of its ranks however
they end.)
"""

import os
import re
import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NoReturn

import mpi4py

from jaxpipe.comm.mpi.open_mpi import chosen_settings
from jaxpipe.comm.tags import LARGEST_TAG
from jaxpipe.errors import RankLostError, TransportError

mpi4py.rc(initialize=False, finalize=False)

# Before `MPI` is imported: Open MPI reads them then, and not again when it is initialised.
os.environ |= chosen_settings(os.environ)

from mpi4py import MPI  # noqa: E402  the lines above must come first

NUDGE_TAG = LARGEST_TAG + 1  # no message has this tag
WARM_TAG = LARGEST_TAG + 2  # of `KeepWarm`

__all__ = [
    "MPI",
    "NUDGE_TAG",
    "WARM_TAG",
    "abort_mpi",
    "begin_mpi",
    "end_mpi",
    "ended_within",
    "moving_error",
    "ranks_of_host",
    "translated",
]

_LOST = frozenset({MPI.ERR_PROC_FAILED, MPI.ERR_PROC_FAILED_PENDING, MPI.ERR_REVOKED})


@contextmanager
def translated(doing: str) -> Iterator[None]:
    """Translate mpi4py's errors into a `TransportError` that names the failed action."""
    try:
        yield
    except MPI.Exception as error:
        raise moving_error(f"MPI could not {doing}", error) from error


def moving_error(summary: str, error: Exception) -> TransportError:
    """Return the error of a failed message: a `RankLostError` if MPI reports a lost rank."""
    is_lost = isinstance(error, MPI.Exception) and error.Get_error_class() in _LOST
    return (RankLostError if is_lost else TransportError)(f"{summary}: {error}")


def begin_mpi() -> tuple[MPI.Intracomm, bool]:
    """Return a private communicator of all ranks, and whether this call initialised MPI.

    Every rank of the job calls this.

    Raises:
        TransportError: this MPI has too few tags, or was initialised for one thread only.
    """
    ours = not MPI.Is_initialized()
    with translated("begin"):
        if ours:
            MPI.Init_thread(MPI.THREAD_SERIALIZED)
        comm = MPI.COMM_WORLD.Dup()
        comm.Set_errhandler(MPI.ERRORS_RETURN)
        comm.Barrier()  # after it, all ranks have mapped the shared memory
        unlink_shared_memory()
        level, max_tag = MPI.Query_thread(), comm.Get_attr(MPI.TAG_UB)
    if level < MPI.THREAD_SERIALIZED:
        raise TransportError(
            "cannot use this MPI: it must be initialised with MPI_THREAD_SERIALIZED or above"
        )
    if max_tag is None or max_tag < WARM_TAG:
        raise TransportError(
            f"cannot use this MPI: it has tags up to {max_tag}, jaxpipe needs {WARM_TAG}"
        )
    return comm, ours


@contextmanager
def ended_within(timeout_s: float) -> Iterator[None]:
    """End this process by SIGALRM if the block takes longer.

    The end of MPI waits for the other ranks without a deadline, and may hold the interpreter, so
    that no thread could end the wait. The kernel does.
    """
    signal.setitimer(signal.ITIMER_REAL, timeout_s)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0.0)


def end_mpi(comm: MPI.Intracomm, *, ours: bool, timeout_s: float) -> None:
    """Free the communicator, and finalise MPI if we initialised it; every rank calls this.

    A process for which that takes longer than `timeout_s` is ended.
    """
    with translated("end"), ended_within(timeout_s):
        comm.Free()
        if ours:
            MPI.Finalize()


def ranks_of_host(comm: MPI.Intracomm) -> frozenset[int]:
    """Return the ranks that share this host, this one included; every rank calls this."""
    with translated("find the ranks of this host"):
        host = comm.Split_type(MPI.COMM_TYPE_SHARED)
        here, everyone = host.Get_group(), comm.Get_group()
        ranks = here.Translate_ranks(None, everyone)
        for communicator in (here, everyone, host):
            communicator.Free()
    return frozenset(ranks)


def abort_mpi(comm: MPI.Intracomm, *, code: int) -> NoReturn:
    """End all ranks of the job with this exit code."""
    comm.Abort(code)
    raise AssertionError("MPI_Abort returned")


_MAPPED = re.compile(r"(/dev/shm/mpich_shm_\w+)$", flags=re.MULTILINE)


def unlink_shared_memory(maps: Path = Path("/proc/self/maps")) -> None:
    """Remove the names of the files that MPICH has mapped, once all ranks have mapped them.

    Every rank of a host may call this at the same time. Does nothing on systems without `maps`.
    """
    with suppress(OSError):
        for path in set(_MAPPED.findall(maps.read_text())):
            Path(path).unlink(missing_ok=True)
