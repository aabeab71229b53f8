"""Ping-pong of jax arrays over `MpiTransport`, and of raw mpi4py in the same launch.

    mpirun -n 2 python -m experiments.runtime_benchmark.programs.ping_pong [ROUNDS [NUM_BYTES ...]]

Rank 0 prints a line of JSON: per size, the median and the first decile of the one-way times; the
decile says more on a busy machine. Raw and ours alternate in rounds of a few messages. The first
round warms up, so that both use buffers whose pages exist. Each rank is pinned to its own core.

Raw is `Send` and `Recv` between NumPy arrays: on large pages if they are longer than 4 MiB or if
the C library is set so (`GLIBC_TUNABLES=glibc.malloc.hugetlb=1`, as in `jaxpipe train`). Ours
starts with a jax array and ends with another. As in a pipeline, receives are posted ahead; that is
not part of a message's time.

Both send either the `same` array each time or the array that they `received`. In the first case,
raw reads and writes two buffers that stay in the core's cache, which no program that uses its
arrays can do; the second case shows how much that is worth.
"""

import json
import os
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from jaxpipe.collective.codec.aligned import aligned_empty
from jaxpipe.comm import receive_jax
from jaxpipe.comm.mpi.api import MPI
from jaxpipe.comm.mpi.mpi_transport import MpiTransport
from jaxpipe.comm.transport import Transport
from jaxpipe.runtime.process.affinity import pin

SIZES = (2**14, 2**20, 2**24)
TIMEOUT_S = 60.0
_NUM_BUFFERS = 4
_NUM_WARM = 2 * _NUM_BUFFERS
_MESSAGES_PER_ROUND = {2**14: 200, 2**20: 50, 2**24: 10}

PingPong = Callable[[int], list[float]]
"""Take the number of round trips; return the one-way seconds of each."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Quantile:
    """One-way seconds of a message: raw MPI, and `MpiTransport`."""

    raw_s: float
    ours_s: float

    def describe(self) -> dict[str, float]:
        """Return the seconds, the fraction of raw bandwidth, and the seconds over raw."""
        return {
            "raw_s": self.raw_s,
            "ours_s": self.ours_s,
            "bandwidth_fraction": self.raw_s / self.ours_s,
            "over_raw_s": self.ours_s - self.raw_s,
        }


def raw_ping_pong(comm: MPI.Intracomm, num_bytes: int, *, passes_on: bool) -> PingPong:
    """Return a ping-pong of MPI alone, with as many buffers as ours."""
    rank, peer = comm.Get_rank(), 1 - comm.Get_rank()
    buffers = [aligned_empty((num_bytes,), np.uint8) for _ in range(_NUM_BUFFERS)]

    def play(num_messages: int) -> list[float]:
        ball = np.ones(num_bytes, np.uint8)
        one_way_s = []
        for number in range(_NUM_WARM + num_messages):
            theirs = buffers[number % _NUM_BUFFERS if passes_on else 0]
            start_s = time.perf_counter()
            if rank == 0:
                comm.Send([ball, MPI.BYTE], dest=peer)
                comm.Recv([theirs, MPI.BYTE], source=peer)
            else:
                comm.Recv([theirs, MPI.BYTE], source=peer)
                comm.Send([theirs if passes_on else ball, MPI.BYTE], dest=peer)
            one_way_s.append((time.perf_counter() - start_s) / 2)
            ball = theirs if passes_on else ball
        return one_way_s[_NUM_WARM:]

    return play


def our_ping_pong(transport: Transport, num_bytes: int, *, passes_on: bool) -> PingPong:
    """Return a ping-pong of jax arrays."""
    like = jax.ShapeDtypeStruct((num_bytes // 4,), np.dtype(np.float32))
    rank, peer = transport.rank, 1 - transport.rank

    def play(num_messages: int) -> list[float]:
        ball = jax.device_put(np.ones(like.shape, like.dtype)).block_until_ready()
        one_way_s = []
        receiving = receive_jax(transport, like, source=peer, tag=0)
        for _ in range(_NUM_WARM + num_messages):
            ahead = receive_jax(transport, like, source=peer, tag=0) if rank == 0 else None
            start_s = time.perf_counter()
            if rank == 0:
                sending = transport.send(ball, to=peer, tag=0)
                theirs = receiving.wait(timeout_s=TIMEOUT_S)
            else:
                theirs = receiving.wait(timeout_s=TIMEOUT_S)
                sending = transport.send(theirs if passes_on else ball, to=peer, tag=0)
            sending.wait(timeout_s=TIMEOUT_S)
            one_way_s.append((time.perf_counter() - start_s) / 2)
            receiving = ahead or receive_jax(transport, like, source=peer, tag=0)
            ball = theirs if passes_on else ball
            del theirs
        transport.send(ball, to=peer, tag=0)  # for the receive that was posted last
        receiving.wait(timeout_s=TIMEOUT_S)
        return one_way_s[_NUM_WARM:]

    return play


def compare(comm: MPI.Intracomm, num_bytes: int, *, rounds: int, passes_on: bool) -> dict[str, Any]:
    """Play raw and ours in turn; all ranks call this."""
    raw_s, ours_s = [], []
    num_messages = _MESSAGES_PER_ROUND.get(num_bytes, 20)
    for play_round in range(rounds + 1):
        raw = raw_ping_pong(comm, num_bytes, passes_on=passes_on)(num_messages)
        transport = MpiTransport()
        ours = our_ping_pong(transport, num_bytes, passes_on=passes_on)(num_messages)
        transport.close()
        if play_round > 0:  # the first one warms up
            raw_s += raw
            ours_s += ours
    median = Quantile(raw_s=statistics.median(raw_s), ours_s=statistics.median(ours_s))
    fast = Quantile(raw_s=_fast(raw_s), ours_s=_fast(ours_s))
    return {
        "num_bytes": num_bytes,
        "sends": "received" if passes_on else "same",
        "median": median.describe(),
        "fast": fast.describe(),
    }


def _fast(seconds: list[float]) -> float:
    """Return the first decile."""
    return statistics.quantiles(seconds, n=10)[0]


def main(rounds: int, sizes: tuple[int, ...]) -> None:
    """Compare all sizes and print the result."""
    pin(os.environ)
    MPI.Init_thread(MPI.THREAD_SERIALIZED)
    comm = MPI.COMM_WORLD
    assert comm.Get_size() == 2, comm.Get_size()
    results = [
        compare(comm, num_bytes, rounds=rounds, passes_on=passes_on)
        for num_bytes in sizes
        for passes_on in (False, True)
    ]
    if comm.Get_rank() == 0:
        library = MPI.Get_library_version().split("\n")[0].split(",")[0].strip()
        print(json.dumps({"mpi": library, "messages": results}))
    MPI.Finalize()


if __name__ == "__main__":
    main(int((sys.argv[1:2] or ["10"])[0]), tuple(map(int, sys.argv[2:])) or SIZES)
