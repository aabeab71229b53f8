"""A message that cannot even start says so where it is waited for; no rank of MPI is needed."""

import time

import jax.numpy as jnp
import pytest

from jaxpipe.comm.envelope import Envelope
from jaxpipe.comm.mpi.api import MPI
from jaxpipe.comm.mpi.mpi_message import MpiMessage, MpiProgress, MpiSending, begin_send
from jaxpipe.comm.mpi.progress_engine import ProgressEngine
from jaxpipe.errors import TransportError


def test_a_deleted_array_cannot_be_sent():
    progress: MpiProgress = ProgressEngine(lambda: None, clock=time.monotonic)
    envelope = Envelope(source=0, to=1, tag=2, num_bytes=12)
    array = jnp.ones(3)
    array.delete()
    message = MpiMessage(envelope, begin_send(MPI.COMM_SELF, array, envelope), outgoing=True)
    progress.add(message)
    with pytest.raises(TransportError, match="could not move 12 bytes from rank 0 to rank 1"):
        MpiSending(message, progress).wait(timeout_s=5.0)
    assert progress.unfinished() == ()
    progress.stop(timeout_s=5.0)
