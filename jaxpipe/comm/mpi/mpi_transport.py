"""Transport over MPI: one process per rank, messages as plain bytes, receives posted ahead.

Nothing is pickled, and nothing is copied where alignment allows: a send reads the array's own
memory, and a receive fills a buffer that `jax.device_put` aliases.
"""

import logging
import os
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import NoReturn

import jax
import numpy as np

from jaxpipe.comm.buffer import num_bytes_of
from jaxpipe.comm.collective.gather_broadcast import barrier
from jaxpipe.comm.envelope import Envelope
from jaxpipe.comm.mpi.abort_job import end_launcher
from jaxpipe.comm.mpi.api import (
    MPI,
    NUDGE_TAG,
    abort_mpi,
    begin_mpi,
    end_mpi,
    ranks_of_host,
    translated,
)
from jaxpipe.comm.mpi.buffer_pool import BufferPool
from jaxpipe.comm.mpi.keep_warm import keep_warm as keep_warm_over
from jaxpipe.comm.mpi.mpi_message import (
    MpiMessage,
    MpiProgress,
    MpiReceiving,
    MpiSending,
    begin_receive,
    begin_send,
)
from jaxpipe.comm.mpi.native_all_reduce import MpiAllReduce, MpiGroups
from jaxpipe.comm.mpi.progress_engine import ProgressEngine, longest_pause_s, yielding_s
from jaxpipe.comm.mpi.ulfm import among, revoke, shrink
from jaxpipe.comm.tags import CLOSE_TAG, GROUP_TAG
from jaxpipe.comm.transport import HostOrDeviceArray
from jaxpipe.errors import RankLostError, UserError, one_line
from jaxpipe.topo.host_tcp import read_tcp_settings

_PATIENCE_S = 1.0
_STDERR_S = 0.1

logger = logging.getLogger(__name__)


class MpiTransport:
    """This process as one rank of an MPI job; each process creates one.

    Create and close it in the main thread; any thread may send, receive and wait.

    If the job `survives` lost ranks (Open MPI, started `--with-ft ulfm`), a message that fails
    because of one raises a `RankLostError`; the remaining ranks call `revoke`, then `shrink`.
    `comm` is a communicator of some ranks of such a job, by default of all ranks. With `keep_warm`,
    connections between hosts do not slow down in silences (`jaxpipe.comm.mpi.keep_warm`).

    Raises:
        TransportError: this MPI has too few tags, or was initialised for one thread only.
    """

    def __init__(
        self,
        *,
        close_timeout_s: float = 60.0,
        survives: bool = False,
        keep_warm: bool = True,
        comm: MPI.Intracomm | None = None,
    ):
        self._comm, self._ours = begin_mpi() if comm is None else (comm, False)
        self._survives = survives
        self._rank, self._num_ranks = self._comm.Get_rank(), self._comm.Get_size()
        self._close_timeout_s = close_timeout_s
        self._closed = False
        self._pool = BufferPool()
        self._groups = MpiGroups(self._comm)
        neighbours, settings = ranks_of_host(self._comm), read_tcp_settings()
        self._keeps_warm = keep_warm
        self._warm = keep_warm_over(
            self._comm,
            remote=frozenset(range(self._num_ranks)) - neighbours,
            sends=keep_warm and settings is not None and settings.restarts,
        )
        num_ranks, num_cores = len(neighbours), os.cpu_count() or 1
        self._progress: MpiProgress = ProgressEngine(
            self._nudge,
            clock=time.monotonic,
            longest_pause_s=longest_pause_s(num_ranks=num_ranks, num_cores=num_cores),
            yielding_s=yielding_s(num_ranks=num_ranks, num_cores=num_cores),
            tend=self._warm.tend,
        )

    @property
    def rank(self) -> int:
        """The rank of the caller."""
        return self._rank

    @property
    def num_ranks(self) -> int:
        """The number of ranks."""
        return self._num_ranks

    def send(self, array: HostOrDeviceArray, *, to: int, tag: int) -> MpiSending:
        """Start to send `array` to the rank `to`, as soon as it is computed."""
        assert to < self._num_ranks, (to, self._num_ranks)
        envelope = Envelope(self._rank, to, tag, num_bytes_of(array))
        self._warm.sent(to, num_bytes=envelope.num_bytes, now_s=time.monotonic())
        message = MpiMessage(envelope, begin_send(self._comm, array, envelope), outgoing=True)
        self._progress.add(message)
        return MpiSending(message, self._progress)

    def receive(self, like: jax.ShapeDtypeStruct, *, source: int, tag: int) -> MpiReceiving:
        """Start to receive an array of the shape and dtype of `like` from the rank `source`.

        `wait` raises if the message has another size; but Open MPI does not detect one that is too
        long and comes from the rank itself.
        """
        assert source < self._num_ranks, (source, self._num_ranks)
        envelope = Envelope(source, self._rank, tag, num_bytes_of(like))
        buffer = self._pool.take(envelope.num_bytes)
        message = MpiMessage(envelope, begin_receive(self._comm, buffer, envelope), outgoing=False)
        self._progress.add(message)
        memory = buffer.view(like.dtype).reshape(like.shape)
        return MpiReceiving(message, self._progress, memory)

    def native_all_reduce(
        self, array: np.ndarray, *, members: tuple[int, ...], timeout_s: float
    ) -> np.ndarray:
        """Sum `array` over `members`, in place, by MPI's own all-reduce, and return it.

        All members call this, with the same members in the same order, and in the same order. The
        first call waits for all of them, to create their communicator.

        Raises:
            DeadlineError: it took longer than `timeout_s`; the array may still be written to.
            TransportError: MPI cannot sum this dtype, or the job was aborted.
        """
        # Creating a communicator blocks inside of MPI without a deadline; the barrier has one.
        if members not in self._groups:
            barrier(self, tag=GROUP_TAG, timeout_s=timeout_s, members=members)
            self._progress.alone(lambda: self._groups.make(members))
        summing = MpiAllReduce(self._groups[members], array, members=members)
        self._progress.add(summing)
        self._progress.wait(summing, timeout_s=timeout_s)
        summing.raise_if_failed()
        return array

    def revoke(self, *, timeout_s: float) -> None:
        """Make all pending messages fail, on all ranks, and wait until they have.

        Later sends and receives fail as well, with a `RankLostError`.

        Raises:
            DeadlineError: a message has neither completed nor failed after `timeout_s`.
        """
        self._progress.alone(lambda: revoke((self._comm, *self._groups.all())))
        for operation in self._progress.unfinished():
            self._progress.wait(operation, timeout_s=timeout_s)

    def shrink(self) -> tuple["MpiTransport", tuple[int, ...]]:
        """Return the transport of the remaining ranks, and their ranks in this one.

        All of them call this, after `revoke`, and it waits for them without a deadline.

        Raises:
            TransportError: MPI cannot do it.
        """
        # The thread must not test requests of a communicator that is being replaced.
        self._progress.stop(timeout_s=_PATIENCE_S)
        comm, members = self._progress.alone(lambda: shrink(self._comm))
        return self._over(comm), members

    def among(self, ranks: Sequence[int]) -> "MpiTransport | None":
        """Return the transport of some ranks, numbered in this order, and None on the others.

        All ranks call this, and use this transport no more.

        Raises:
            RankLostError: one of them is lost.
        """
        if tuple(ranks) == tuple(range(self._num_ranks)):
            return self
        self._progress.stop(timeout_s=_PATIENCE_S)
        if self._rank not in ranks:
            return None
        return self._over(self._progress.alone(lambda: among(self._comm, ranks)))

    def close(self, *, error: BaseException | None = None) -> None:
        """End this rank's part together with all others; with an `error`, end the job at once.

        Without an error: waits until its sends are complete and all ranks have called this. With
        one: writes it to stderr in one line and makes MPI end all ranks, with exit code 2 for a
        user's mistake, else 1.

        A job that `survives` does not finalise MPI, which could wait for a lost rank. The first
        rank to exit may look lost to the others.

        Raises:
            DeadlineError: a send or a rank is missing after the `close_timeout_s` of the
                constructor; the transport may still be closed with this error. If MPI itself does
                not end within that time, SIGALRM ends the process.
            TransportError: a send failed.
            RankLostError: a rank is lost.
        """
        if self._closed:
            return
        if error is not None:
            self._abort(error)
        self._warm.stop()
        # Sends first: their arrays may be freed once this returns.
        self._drain()
        # Nobody finalises MPI before all have come: it would drop messages that are still moving.
        barrier(self, tag=CLOSE_TAG, timeout_s=self._close_timeout_s)
        # Only now: the barrier itself needs the progress thread.
        self._progress.stop(timeout_s=self._close_timeout_s)
        if not self._survives:
            self._forget_receives()
            self._groups.free()
            end_mpi(self._comm, ours=self._ours, timeout_s=self._close_timeout_s)
        self._closed = True

    def _over(self, comm: MPI.Intracomm) -> "MpiTransport":
        return MpiTransport(
            close_timeout_s=self._close_timeout_s,
            survives=True,
            keep_warm=self._keeps_warm,
            comm=comm,
        )

    def _nudge(self) -> None:
        with suppress(RankLostError), translated("look for messages"):
            self._comm.Iprobe(self._rank, NUDGE_TAG)  # a lost rank fails each message anyway

    def _drain(self) -> None:
        for operation in self._progress.unfinished():
            if operation.outgoing:
                self._progress.wait(operation, timeout_s=self._close_timeout_s)
                operation.raise_if_failed()

    def _forget_receives(self) -> None:
        for operation in self._progress.unfinished():
            assert isinstance(operation, MpiMessage), "native all-reduces were waited for"
            logger.warning("rank %d never received %s", self._rank, operation.envelope)
            operation.cancel()

    def _abort(self, error: BaseException) -> NoReturn:
        sys.stderr.write(f"{one_line(self._rank, error)}\n")
        sys.stderr.flush()
        time.sleep(_STDERR_S)  # the launcher forwards stderr and MPI's own message separately
        self._progress.stop(timeout_s=_PATIENCE_S)
        # `MPI_Abort` would count as one more lost rank here.
        if self._survives:
            end_launcher()
        abort_mpi(self._comm, code=2 if isinstance(error, UserError) else 1)
