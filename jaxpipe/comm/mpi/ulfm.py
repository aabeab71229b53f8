"""What the survivors of a lost rank do with MPI, where it lets them: Open MPI with ULFM.

::

    rank 2 is killed    0 ◄─ error   1      3         whoever has a message from it or for it
    revoke              0 ──────────►1─────►3         so that all have an error, and none waits on
    shrink              0            1      2         a communicator of those that are left

MPI's calls here wait for all survivors, without a deadline: whoever calls them has to set one.

Source: Bland, Bouteiller, Herault, Bosilca and Dongarra, "Post-failure recovery of MPI
communication capability", 2013.
"""

from collections.abc import Iterable
from contextlib import suppress

from jaxpipe.comm.mpi.api import MPI, translated


def revoke(comms: Iterable[MPI.Intracomm]) -> None:
    """Make all messages of these communicators fail, on all ranks, now and later."""
    for comm in comms:
        with suppress(MPI.Exception):  # another rank may have revoked it
            comm.Revoke()


def shrink(comm: MPI.Intracomm) -> tuple[MPI.Intracomm, tuple[int, ...]]:
    """Return a communicator of the ranks that are left, and which ranks of `comm` these are.

    Raises:
        TransportError: MPI cannot do it.
    """
    with translated("leave lost ranks behind"):
        left = comm.Shrink()
        assert isinstance(left, MPI.Intracomm), left
        left.Set_errhandler(MPI.ERRORS_RETURN)
        members = left.Get_group().Translate_ranks(None, comm.Get_group())
    return left, tuple(int(rank) for rank in members)


def first_ranks(comm: MPI.Intracomm, num_ranks: int) -> MPI.Intracomm:
    """Return a communicator of the first ranks, all of whom call this.

    Raises:
        RankLostError: one of them is gone.
    """
    with translated("leave spare ranks out"):
        group = comm.Create_group(comm.Get_group().Incl(range(num_ranks)))
        group.Set_errhandler(MPI.ERRORS_RETURN)
    return group
