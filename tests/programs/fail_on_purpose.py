"""One rank of an MPI job that ends in the way that its first argument names."""

import sys
import time
from pathlib import Path

import jax
import numpy as np

from jaxpipe.collective.kinds import AllReduceKind
from jaxpipe.comm.collective.all_reduce import all_reduce
from jaxpipe.comm.mpi.mpi_transport import MpiTransport

ONE = jax.ShapeDtypeStruct((1,), np.dtype(np.float32))


def raise_on_rank_1(transport: MpiTransport) -> None:
    if transport.rank == 1:
        raise ValueError("stage 1 is\n  too big")
    transport.receive(ONE, source=1, tag=0).wait(timeout_s=60.0)


def compute_on_rank_0_while_rank_1_raises(transport: MpiTransport) -> None:
    if transport.rank == 1:
        raise ValueError("stage 1 is\n  too big")
    time.sleep(60.0)


def wait_for_what_never_comes(transport: MpiTransport) -> None:
    if transport.rank == 1:
        transport.receive(ONE, source=0, tag=7).wait(timeout_s=0.5)
    transport.receive(ONE, source=1, tag=7).wait(timeout_s=60.0)


def stay_away_from_the_end(transport: MpiTransport) -> None:
    if transport.rank == 0:
        time.sleep(60.0)


def stay_away_from_the_first_sum_in_the_library(transport: MpiTransport) -> None:
    if transport.rank == 0:
        time.sleep(60.0)
    all_reduce(transport, np.ones(9), (0, 1), tag=5, timeout_s=0.5, algorithm=AllReduceKind.LIBRARY)


def stay_away_from_the_second_sum_in_the_library(transport: MpiTransport) -> None:
    all_reduce(
        transport, np.ones(9), (0, 1), tag=5, timeout_s=10.0, algorithm=AllReduceKind.LIBRARY
    )
    stay_away_from_the_first_sum_in_the_library(transport)


def post_a_receive_too_many(transport: MpiTransport) -> None:
    if transport.rank == 1:
        transport.receive(ONE, source=0, tag=3)


def leave_a_send_to_the_end(transport: MpiTransport) -> None:
    large = np.zeros(2**20, np.float32)
    if transport.rank == 0:
        transport.send(large, to=1, tag=0)
    else:
        time.sleep(0.2)
        like = jax.ShapeDtypeStruct(large.shape, large.dtype)
        transport.receive(like, source=0, tag=0).wait(timeout_s=10.0)


ENDINGS = (
    raise_on_rank_1,
    compute_on_rank_0_while_rank_1_raises,
    wait_for_what_never_comes,
    stay_away_from_the_end,
    stay_away_from_the_first_sum_in_the_library,
    stay_away_from_the_second_sum_in_the_library,
    post_a_receive_too_many,
    leave_a_send_to_the_end,
)


def main(ending: str, folder: Path) -> None:
    work = {work.__name__: work for work in ENDINGS}[ending]
    transport = MpiTransport(close_timeout_s=0.5 if work is stay_away_from_the_end else 10.0)
    try:
        work(transport)
        transport.close()
    except Exception as error:
        (folder / "failed").touch()
        transport.close(error=error)


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
