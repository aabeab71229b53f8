"""Measure what reports of links cost a message: `python -m experiments.slow_link.cost`.

Over a transport that does nothing, so that only the log is timed. Prints nanoseconds per message,
medians of nine rounds of 20,000 messages: to log a send and a receive, to take both from the log,
and to match and sum them on rank 0.
"""

import os
import time
from collections.abc import Callable
from statistics import median

import jax
import numpy as np

from jaxpipe.comm import LoggedTransport, MessageLog
from jaxpipe.comm.message_timing import Times
from jaxpipe.comm.transport import HostOrDeviceArray
from jaxpipe.runtime.metrics.matched_messages import Matcher, pair_uses

_ROUNDS, _MESSAGES = 9, 20_000


class _Done:
    """A message that was complete when it was handed over."""

    timing = Times(1.0, 2.0)

    def wait(self, *, timeout_s: float) -> float:
        return timeout_s


class _Idle:
    """A transport that moves nothing; its receives are sends."""

    rank, num_ranks = 0, 2
    _done = _Done()

    def send(self, array: HostOrDeviceArray, *, to: int, tag: int) -> _Done:  # noqa: ARG002
        return self._done

    def receive(self, like: jax.ShapeDtypeStruct, *, source: int, tag: int) -> _Done:  # noqa: ARG002
        return self._done

    def close(self, *, error: BaseException | None = None) -> None:
        pass


def main() -> None:
    """Print the cost of each part."""
    array, idle = np.zeros(4), _Idle()
    rounds = [_round(array, idle) for _ in range(_ROUNDS)]
    names = ("bare transport", "logged", "taken", "matched and summed")
    for name, costs in zip(names, zip(*rounds, strict=True), strict=True):
        print(f"{name:<20}{median(costs) / _MESSAGES:8.0f} ns per message")
    print(f"load {os.getloadavg()[0]:.0f}")


def _round(array: np.ndarray, idle: _Idle) -> tuple[float, float, float, float]:
    log = MessageLog(rank=0)
    logged = LoggedTransport(idle, log)  # pyright: ignore[reportArgumentType]

    def messages(transport: _Idle | LoggedTransport) -> None:
        like = jax.ShapeDtypeStruct((4,), np.float64)
        for number in range(_MESSAGES):
            transport.send(array, to=1, tag=number % 64)
            transport.receive(like, source=1, tag=number % 64)

    bare = _ns(lambda: messages(idle))
    with_log = _ns(lambda: messages(logged))
    logs: list[np.ndarray] = []
    taken = _ns(lambda: logs.extend((log.take_sent(), log.take_received())))
    sent, received = logs
    received["source"], received["to"] = 0, 1
    matched = _ns(lambda: list(pair_uses(sent, Matcher().match(sent, received))))
    return bare, with_log, taken, matched


def _ns(work: Callable[[], object]) -> float:
    begin = time.process_time_ns()  # of the processor: this machine may be busy
    work()
    return time.process_time_ns() - begin


if __name__ == "__main__":
    main()
