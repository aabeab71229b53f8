"""MPI's own all-reduce, driven like a message: it has a deadline and does not block messages.

Its members need a communicator of their own. MPI creates one in a blocking call without a deadline;
so the members first wait for each other in a barrier that has one.
"""

import numpy as np

from jaxpipe.comm.mpi.api import MPI, moving_error, translated
from jaxpipe.errors import DeadlineError, TransportError


class MpiAllReduce:
    """One all-reduce, as an operation that `Progress` drives; the array becomes the total."""

    outgoing = True

    def __init__(self, comm: MPI.Intracomm, array: np.ndarray, *, members: tuple[int, ...]):
        self.is_over = False
        self._comm, self._array, self._members = comm, array, members
        self._request: MPI.Request | None = None
        self._error: TransportError | None = None

    @property
    def channel(self) -> tuple[int, ...]:
        """All-reduces of the same members start in order."""
        return self._members

    def start(self) -> bool:
        """Pass the array to MPI."""
        try:
            self._request = self._comm.Iallreduce(MPI.IN_PLACE, self._array)
        except (MPI.Exception, KeyError) as error:  # KeyError: a dtype that MPI does not have
            self._fail(error)
        return True

    def test(self) -> bool:
        """Ask MPI whether the all-reduce is complete."""
        if self.is_over:
            return True
        assert self._request is not None, "not started"
        try:
            is_over = self._request.Test()
        except MPI.Exception as error:
            self._fail(error)
            return True
        if is_over:
            self.is_over = True
        return is_over

    def late(self, *, waited_s: float) -> DeadlineError:
        """Return the error of a wait that timed out after `waited_s`."""
        return DeadlineError(f"timed out after {waited_s:.1f} s waiting for {self._name()}")

    def raise_if_failed(self) -> None:
        """Raise the error of MPI, if there is one, as a `TransportError`."""
        if self._error is not None:
            raise self._error

    def _fail(self, error: Exception) -> None:
        self._error = moving_error(f"could not compute {self._name()}", error)
        self._error.__cause__ = error
        self.is_over = True

    def _name(self) -> str:
        return f"the sum of {self._array.nbytes} bytes over the ranks {self._members}"


class MpiGroups:
    """The communicators of native all-reduces, one for each set of members."""

    def __init__(self, comm: MPI.Intracomm):
        self._comm = comm
        self._groups: dict[tuple[int, ...], MPI.Intracomm] = {}

    def __contains__(self, members: tuple[int, ...]) -> bool:
        return members in self._groups

    def __getitem__(self, members: tuple[int, ...]) -> MPI.Intracomm:
        return self._groups[members]

    def make(self, members: tuple[int, ...]) -> None:
        """Create the communicator of the members, which all call this at about the same time."""
        with translated(f"make a communicator of the ranks {members}"):
            group = self._comm.Get_group().Incl(members)
            self._groups[members] = self._comm.Create_group(group)

    def all(self) -> tuple[MPI.Intracomm, ...]:
        """Return all communicators that this rank has created."""
        return tuple(self._groups.values())

    def free(self) -> None:
        """Free all of them; every rank calls this."""
        with translated("free a communicator"):
            # `Free` is collective: all ranks have to free their communicators in one order.
            for _, group in sorted(self._groups.items()):
                group.Free()
