"""Bursts of messages after silences over jaxpipe's MPI transport; `mpirun -n 2` starts this.

Rank 0 is silent, then sends a few messages, each when the one before has arrived, and so again. All
hosts share the machine's monotonic clock; a message takes from its send to the arrival of its last
byte. Rank 0 prints one line of JSON: a list of seconds for each burst.

    python -m experiments.idle_links.bursts WARM PAUSE_S NUM_BYTES NUM_MESSAGES NUM_BURSTS

With several sizes, as `1000,2000`, there are as many bursts of each, one size after the other.
"""

import json
import sys
import time

import jax
import numpy as np

from jaxpipe.comm.mpi.mpi_transport import MpiTransport

_TIMEOUT_S = 60.0
_DATA, _DONE = 1, 2


def main() -> None:
    """Run this rank; rank 0 prints."""
    warm, pause_s, sizes, *numbers = sys.argv[1:]
    num_messages, num_bursts = map(int, numbers)
    bursts = [int(size) for size in sizes.split(",") for _ in range(num_bursts)]
    transport = MpiTransport(keep_warm=warm == "warm")
    if transport.rank == 0:
        found = [_burst(transport, float(pause_s), size, num_messages) for size in bursts]
        sys.stdout.write(json.dumps(found) + "\n")
        sys.stdout.flush()
    else:
        for size in bursts:
            _receive(transport, size, num_messages)
    transport.close()


def _burst(
    transport: MpiTransport, pause_s: float, num_bytes: int, num_messages: int
) -> list[float]:
    data = np.zeros(num_bytes, np.uint8)
    time.sleep(pause_s)
    seconds = []
    for _ in range(num_messages):
        start_s = time.monotonic()
        transport.send(data, to=1, tag=_DATA)
        arrival = jax.ShapeDtypeStruct((1,), np.float64)
        answer = transport.receive(arrival, source=1, tag=_DONE).wait(timeout_s=_TIMEOUT_S)
        seconds.append(float(np.asarray(answer)[0]) - start_s)
    return seconds


def _receive(transport: MpiTransport, num_bytes: int, num_messages: int) -> None:
    data = jax.ShapeDtypeStruct((num_bytes,), np.uint8)
    for _ in range(num_messages):
        transport.receive(data, source=0, tag=_DATA).wait(timeout_s=_TIMEOUT_S)
        now = np.array([time.monotonic()])
        transport.send(now, to=0, tag=_DONE).wait(timeout_s=_TIMEOUT_S)


if __name__ == "__main__":
    main()
