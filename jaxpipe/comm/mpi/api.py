"""Where mpi4py is imported, nowhere else: MPI begins, ends and aborts by call, not by import.

Each call to MPI goes through `Progress`, which lets in one thread at a time, so
`MPI_THREAD_SERIALIZED` is enough, the level that asks least of an MPI.


Shared memory without a name: nothing of it stays when the ranks of a host are killed.

MPICH maps a file in `/dev/shm` into all ranks of a host when MPI begins, and removes it when MPI
ends. Of ranks that are killed it stays, some MiB each time, until somebody removes it. Once all
ranks have mapped it, its name serves nobody, and MPICH does not mind that it is gone. (Open MPI's
launcher removes the files of its ranks, however these end.)
"""

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NoReturn

import mpi4py
from mpi4py import MPI

from jaxpipe.comm.tags import LARGEST_TAG
from jaxpipe.errors import RankLostError, TransportError

mpi4py.rc(initialize=False, finalize=False)

NUDGE_TAG = LARGEST_TAG + 1  # nobody sends with it

_EAGER_BYTES = 32 * 2**20
_AT_ONCE = {
    "OMPI_MCA_btl_tcp_eager_limit": f"{_EAGER_BYTES}",
    "OMPI_MCA_btl_tcp_rndv_eager_limit": f"{_EAGER_BYTES}",
}
"""Up to this size, messages over TCP are sent without asking the receiver first, a round trip that
far links make long, and which would be in vain: receives are posted ahead."""

__all__ = [
    "MPI",
    "NUDGE_TAG",
    "abort_mpi",
    "begin_mpi",
    "count_neighbours",
    "end_mpi",
    "moving_error",
    "translated",
]

_LOST = frozenset({MPI.ERR_PROC_FAILED, MPI.ERR_PROC_FAILED_PENDING, MPI.ERR_REVOKED})


@contextmanager
def translated(doing: str) -> Iterator[None]:
    """Turn mpi4py's errors into a `TransportError` that names what was being done."""
    try:
        yield
    except MPI.Exception as error:
        raise moving_error(f"MPI could not {doing}", error) from error


def moving_error(words: str, error: Exception) -> TransportError:
    """Return the error of a message that MPI could not move, which knows whether a rank is lost."""
    is_lost = isinstance(error, MPI.Exception) and error.Get_error_class() in _LOST
    return (RankLostError if is_lost else TransportError)(f"{words}: {error}")


def begin_mpi() -> tuple[MPI.Intracomm, bool]:
    """Return a communicator of all ranks for us alone, and whether MPI was initialised for it.

    Every rank of the job calls this.

    Raises:
        TransportError: this MPI has too few tags, or was initialised for one thread only.
    """
    ours = not MPI.Is_initialized()
    with translated("begin"):
        if ours:
            for name, value in _AT_ONCE.items():
                os.environ.setdefault(name, value)
            MPI.Init_thread(MPI.THREAD_SERIALIZED)
        comm = MPI.COMM_WORLD.Dup()
        comm.Set_errhandler(MPI.ERRORS_RETURN)
        comm.Barrier()
        forget_names()
        level, max_tag = MPI.Query_thread(), comm.Get_attr(MPI.TAG_UB)
    if level < MPI.THREAD_SERIALIZED:
        raise TransportError("MPI must be initialised with MPI_THREAD_SERIALIZED or above")
    if max_tag is None or max_tag < NUDGE_TAG:
        raise TransportError(f"this MPI has tags up to {max_tag}, jaxpipe needs {NUDGE_TAG}")
    return comm, ours


def end_mpi(comm: MPI.Intracomm, *, ours: bool) -> None:
    """Free the communicator, and finalise MPI if we initialised it; every rank calls this."""
    with translated("end"):
        comm.Free()
        if ours:
            MPI.Finalize()


def count_neighbours(comm: MPI.Intracomm) -> int:
    """Return how many ranks share this host, this one included; every rank calls this."""
    with translated("count the ranks of this host"):
        host = comm.Split_type(MPI.COMM_TYPE_SHARED)
        num_ranks = host.Get_size()
        host.Free()
    return num_ranks


def abort_mpi(comm: MPI.Intracomm, *, code: int) -> NoReturn:
    """End all ranks of the job with this exit code."""
    comm.Abort(code)
    raise AssertionError("MPI_Abort returned")


_MAPPED = re.compile(r"(/dev/shm/mpich_shm_\w+)$", flags=re.MULTILINE)


def forget_names(maps: Path = Path("/proc/self/maps")) -> None:
    """Remove the names of what MPICH has mapped into this process, once all ranks have it.

    Any rank may, and each rank of a host may at the same time. Systems without `maps` are left as
    they are.
    """
    with suppress(OSError):
        for path in set(_MAPPED.findall(maps.read_text())):
            Path(path).unlink(missing_ok=True)
