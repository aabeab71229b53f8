"""Measure the collectives of a job, as a profile for `jaxpipe.baselines.autoshard.duplex`.

Every rank takes part; the time of a collective is the mean over ranks, which begin it together. Of
each size the median counts; one latency and the speed of each kind are fitted to them. Sizes are of
the whole array: an all-gather and an all-to-all move a part of it for each rank.

Cost: a rank holds up to three arrays of the largest size. A kind takes about `budget_s` at most:
sizes that would take longer than what is left are skipped, but for the smallest one.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median

import numpy as np

from jaxpipe.baselines.autoshard.duplex import CollectiveProfile
from jaxpipe.collective.kinds import AllReduceKind, CollectiveKind
from jaxpipe.comm.collective.all_reduce import all_reduce
from jaxpipe.comm.collective.exchange import all_gather, all_to_all, reduce_scatter
from jaxpipe.comm.collective.gather_broadcast import barrier
from jaxpipe.comm.tags import ALL_REDUCE_TAG, BARRIER_TAG
from jaxpipe.comm.transport import Transport
from jaxpipe.errors import ConfigError
from jaxpipe.profile.timing import Clock

MIB = 2**20
_TIMEOUT_S = 60.0
_LEAST_S = 1e-9


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectiveSettings:
    """What to measure.

    Args:
        sizes_bytes: of the whole array, ascending [bytes].
        repeats: of each size; the first call is not counted.
        budget_s: for each kind [s].

    Raises:
        ConfigError: there is no size, or one is too small to be cut, or no repeat.
    """

    sizes_bytes: tuple[int, ...] = (4 * MIB, 16 * MIB, 64 * MIB, 256 * MIB)
    repeats: int = 5
    budget_s: float = 20.0

    def __post_init__(self) -> None:
        if not self.sizes_bytes or min(self.sizes_bytes) < MIB:
            raise ConfigError(f"`sizes_bytes` must be at least {MIB} each, are {self.sizes_bytes}")
        if self.repeats < 1:
            raise ConfigError(f"`repeats` must be at least 1, is {self.repeats}")


def measure_collectives(
    transport: Transport, settings: CollectiveSettings, *, clock: Clock
) -> CollectiveProfile:
    """Return the speeds of the four collectives; all ranks call this, and get the same.

    Raises:
        DeadlineError: a rank did not come.
        TransportError: a message could not be moved.
    """
    measuring = _Measuring(transport, clock)
    least = 4 * transport.num_ranks
    times = {kind: [(least, measuring.median_s(kind, least, 3))] for kind in _CALLS}
    for kind, points in times.items():
        left_s, last_s = settings.budget_s, 0.0
        for size in settings.sizes_bytes:
            # The next size takes in proportion, and is called once more than it counts.
            expected_s = last_s * 4 * (settings.repeats + 1)
            if len(points) > 1 and expected_s > left_s:
                break
            last_s = measuring.median_s(kind, size, settings.repeats)
            left_s -= last_s * (settings.repeats + 1)
            points.append((size, last_s))
    latency_s, speeds = fitted_speeds(times)
    return CollectiveProfile(
        devices=transport.num_ranks,
        latency_s=latency_s,
        all_gather=speeds[CollectiveKind.ALL_GATHER],
        all_reduce=speeds[CollectiveKind.ALL_REDUCE],
        reduce_scatter=speeds[CollectiveKind.REDUCE_SCATTER],
        all_to_all=speeds[CollectiveKind.ALL_TO_ALL],
        source=f"measured by `jaxpipe profile --collectives` over {transport.num_ranks} ranks",
    )


def fitted_speeds(
    times: Mapping[CollectiveKind, Sequence[tuple[int, float]]],
) -> tuple[float, dict[CollectiveKind, float]]:
    """Return the latency that all kinds have and the bytes/s of each, fitted to bytes and seconds.

    The least squares of relative errors of `latency + bytes / speed`; none is negative. Where other
    work disturbed the calls, a large array may not be slower: its own bytes/s count then.

    >>> kind = CollectiveKind.ALL_REDUCE
    >>> latency_s, speeds = fitted_speeds({kind: [(0, 0.5), (4, 1.5), (8, 2.5)]})
    >>> round(latency_s, 6), round(speeds[kind], 6)
    (0.5, 4.0)
    """
    from scipy.optimize import nnls  # slow to import, and `--help` has no use for it

    points = [(row, point) for row, kind in enumerate(times) for point in times[kind]]
    matrix = np.zeros((len(points), 1 + len(times)))
    for line, (row, (num_bytes, seconds)) in zip(matrix, points, strict=True):
        # Divided by the seconds, since errors are relative; in MiB, numbers of a size.
        line[0] = 1 / max(seconds, _LEAST_S)
        line[1 + row] = num_bytes / MIB * line[0]
    latency_s, *byte_s = nnls(matrix, np.ones(len(points)))[0]
    speeds: dict[CollectiveKind, float] = {}
    for kind, mib_s in zip(times, byte_s, strict=True):
        num_bytes, seconds = times[kind][-1]
        speeds[kind] = float(MIB / mib_s) if mib_s else num_bytes / max(seconds, _LEAST_S)
    return float(latency_s), speeds


@dataclass(frozen=True, slots=True)
class _Measuring:
    transport: Transport
    clock: Clock

    def median_s(self, kind: CollectiveKind, num_bytes: int, repeats: int) -> float:
        """Return the median of the mean seconds of all ranks; the first call is not counted."""
        order = tuple(range(self.transport.num_ranks))
        elements = np.zeros(_own_elements(kind, num_bytes, len(order)), np.float32)
        call, taken_s = _CALLS[kind], []
        for _ in range(repeats + 1):
            barrier(self.transport, tag=BARRIER_TAG, timeout_s=_TIMEOUT_S)
            start_s = self.clock()
            call(self.transport, elements, order)
            taken_s.append(self.clock() - start_s)
        # The same bits on all ranks, so that all take the same decisions.
        total = all_reduce(
            self.transport,
            np.array(taken_s[1:]),
            order,
            tag=ALL_REDUCE_TAG,
            timeout_s=_TIMEOUT_S,
        )
        return float(median(total / len(order)))


def _own_elements(kind: CollectiveKind, num_bytes: int, num_ranks: int) -> int:
    """Return the elements that a rank brings."""
    of_part = kind in (CollectiveKind.ALL_GATHER, CollectiveKind.ALL_TO_ALL)
    return max(num_ranks, num_bytes // 4 // (num_ranks if of_part else 1))


def _gather(transport: Transport, elements: np.ndarray, order: Sequence[int]) -> None:
    size = elements.size * len(order)
    all_gather(transport, elements, order, size=size, tag=ALL_REDUCE_TAG, timeout_s=_TIMEOUT_S)


def _reduce(transport: Transport, elements: np.ndarray, order: Sequence[int]) -> None:
    all_reduce(
        transport,
        elements,
        tuple(order),
        tag=ALL_REDUCE_TAG,
        timeout_s=_TIMEOUT_S,
        algorithm=AllReduceKind.RING,
    )


def _scatter(transport: Transport, elements: np.ndarray, order: Sequence[int]) -> None:
    reduce_scatter(transport, elements, order, tag=ALL_REDUCE_TAG, timeout_s=_TIMEOUT_S)


def _exchange(transport: Transport, elements: np.ndarray, order: Sequence[int]) -> None:
    all_to_all(transport, elements, order, tag=ALL_REDUCE_TAG, timeout_s=_TIMEOUT_S)


_CALLS: Mapping[CollectiveKind, Callable[[Transport, np.ndarray, Sequence[int]], None]] = {
    CollectiveKind.ALL_GATHER: _gather,
    CollectiveKind.ALL_REDUCE: _reduce,
    CollectiveKind.REDUCE_SCATTER: _scatter,
    CollectiveKind.ALL_TO_ALL: _exchange,
}
