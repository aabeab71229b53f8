"""Recovery from a lost rank by User Level Failure Mitigation (ULFM), as in Open MPI.

::

    rank 2 is killed    0 ◄─ error   1      3         ranks with a message from it or to it
    revoke              0 ──────────►1─────►3         all ranks get an error, none keeps waiting
    shrink              0            1      2         a communicator of the remaining ranks

These MPI calls wait for all survivors without a deadline: the caller has to set one.

Source: Bland, Bouteiller, Herault, Bosilca and Dongarra, "Post-failure recovery of MPI
communication capability", 2013.
"""

from collections.abc import Iterable, Sequence
from contextlib import suppress

from jaxpipe.comm.mpi.api import MPI, translated


def revoke(comms: Iterable[MPI.Intracomm]) -> None:
    """Make all pending and later messages of these communicators fail, on all ranks."""
    for comm in comms:
        with suppress(MPI.Exception):  # another rank may have revoked it
            comm.Revoke()


def shrink(comm: MPI.Intracomm) -> tuple[MPI.Intracomm, tuple[int, ...]]:
    """Return a communicator of the remaining ranks, and their ranks in `comm`.

    Raises:
        TransportError: MPI cannot do it.
    """
    with translated("leave lost ranks behind"):
        left = comm.Shrink()
        assert isinstance(left, MPI.Intracomm), left
        left.Set_errhandler(MPI.ERRORS_RETURN)
        members = left.Get_group().Translate_ranks(None, comm.Get_group())
    return left, tuple(int(rank) for rank in members)


def among(comm: MPI.Intracomm, ranks: Sequence[int]) -> MPI.Intracomm:
    """Return a communicator of some ranks, in their order; all of them call this.

    Raises:
        RankLostError: one of them is lost.
    """
    with translated("leave spare ranks out"):
        group = comm.Create_group(comm.Get_group().Incl(list(ranks)))
        group.Set_errhandler(MPI.ERRORS_RETURN)
    return group
