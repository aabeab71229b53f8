"""Measure the collectives of a job, as a profile for `jaxpipe.baselines.autoshard.duplex`.

Every rank takes part; the time of a collective is the mean over ranks, which begin it together. Of
each size the median counts; the latency and the speed of each kind are fitted to them. Sizes are of
the whole array: an all-gather and an all-to-all move a part of it for each rank.

Other work of a machine only adds time. What it makes impossible is measured again, and the least
counts: a larger array in less time than a smaller one, an all-reduce in less time than the
reduce-scatter or the all-gather that it consists of.

Cost: a rank holds up to three arrays of the largest size. A kind takes about `budget_s` at most:
sizes that would take longer than what is left are skipped, but for the smallest one. Measuring
again takes `MOST_ROUNDS` times as long at most.
"""

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import mean, median
from typing import Any

import numpy as np

from jaxpipe.baselines.autoshard.duplex import CollectiveProfile
from jaxpipe.baselines.autoshard.duplex.collective_profile import SPEEDS, latency_field
from jaxpipe.collective.kinds import AllReduceKind, CollectiveKind
from jaxpipe.comm.collective.all_reduce import all_reduce
from jaxpipe.comm.collective.exchange import all_gather, all_to_all, reduce_scatter
from jaxpipe.comm.collective.gather_broadcast import barrier
from jaxpipe.comm.tags import ALL_REDUCE_TAG, BARRIER_TAG
from jaxpipe.comm.transport import Transport
from jaxpipe.errors import ConfigError
from jaxpipe.profile.timing import Clock

logger = logging.getLogger(__name__)

MIB = 2**20
MOST_ROUNDS = 3
"""In which what is impossible is measured again."""
_TIMEOUT_S = 60.0
_LEAST_S = 1e-9

Times = dict[CollectiveKind, dict[int, float]]
"""Seconds by kind and bytes, ascending."""


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
    times: Times = {kind: {least: measuring.median_s(kind, least, 3)} for kind in _CALLS}
    for kind, seconds in times.items():
        left_s, last_s = settings.budget_s, 0.0
        for size in settings.sizes_bytes:
            # The next size takes in proportion, and is called once more than it counts.
            expected_s = last_s * 4 * (settings.repeats + 1)
            if len(seconds) > 1 and expected_s > left_s:
                break
            last_s = measuring.median_s(kind, size, settings.repeats)
            left_s -= last_s * (settings.repeats + 1)
            seconds[size] = last_s
    measure_impossible_again(
        times, lambda kind, size: measuring.median_s(kind, size, settings.repeats)
    )
    if transport.rank == 0:  # all have the same
        warn_of_impossible(times)
    fits = {SPEEDS[kind]: fitted_line(seconds) for kind, seconds in times.items()}
    profile = CollectiveProfile(
        devices=transport.num_ranks,
        latency_s=mean(latency_s for latency_s, _ in fits.values()),
        source=f"measured by `jaxpipe profile --collectives` over {transport.num_ranks} ranks",
    )
    speeds: dict[str, Any] = {name: speed for name, (_, speed) in fits.items()}
    latencies = {latency_field(name): latency_s for name, (latency_s, _) in fits.items()}
    return replace(profile, **speeds, **latencies)


def measure_impossible_again(
    times: Times, measured_s: Callable[[CollectiveKind, int], float]
) -> None:
    """Keep the least of several measurements of what cannot be so."""
    for _ in range(MOST_ROUNDS):
        slow = {pair[0]: None for pair in impossible(times)}
        for kind, size in slow:
            times[kind][size] = min(times[kind][size], measured_s(kind, size))


def warn_of_impossible(times: Times) -> None:
    """Warn of what cannot be so, however often it was measured."""
    for (kind, size), (other, other_size) in impossible(times):
        logger.warning(
            "%s of %d bytes took %.3g s, more than %s of %d bytes, %.3g s, each measured again up "
            "to %d times: other work disturbs this machine",
            kind.value,
            size,
            times[kind][size],
            other.value,
            other_size,
            times[other][other_size],
            MOST_ROUNDS,
        )


def impossible(
    times: Mapping[CollectiveKind, Mapping[int, float]],
) -> list[tuple[tuple[CollectiveKind, int], tuple[CollectiveKind, int]]]:
    """Return what took too long, each with what includes it and took less time.

    >>> impossible({CollectiveKind.ALL_GATHER: {4: 2.0, 8: 1.0}})[0][0][1]
    4
    """
    pairs = [
        ((kind, small), (kind, large))
        for kind, seconds in times.items()
        for small, large in zip(seconds, list(seconds)[1:], strict=False)
    ]
    pairs += [
        ((part, size), (CollectiveKind.ALL_REDUCE, size))
        for part in (CollectiveKind.REDUCE_SCATTER, CollectiveKind.ALL_GATHER)
        for size in times.get(part, {}).keys() & times.get(CollectiveKind.ALL_REDUCE, {}).keys()
    ]
    return sorted(
        (part, larger)
        for part, larger in pairs
        if times[part[0]][part[1]] > times[larger[0]][larger[1]]
    )


def fitted_line(times: Mapping[int, float]) -> tuple[float, float]:
    """Return the latency and the bytes/s of a kind of collective, fitted to seconds by bytes.

    The least squares of relative errors of `latency + bytes / speed`, whose speeds are harmonic
    means; neither is negative. Where a large array was not slower, its own bytes/s count.

    >>> latency_s, speed = fitted_line({0: 0.5, 4: 1.5, 8: 2.5})
    >>> round(latency_s, 6), round(speed, 6)
    (0.5, 4.0)
    """
    from scipy.optimize import nnls  # slow to import, and `--help` has no use for it

    # Divided by the seconds, since errors are relative; in MiB, numbers of a size.
    weights = [1 / max(seconds, _LEAST_S) for seconds in times.values()]
    matrix = [(w, size / MIB * w) for size, w in zip(times, weights, strict=True)]
    latency_s, mib_s = nnls(np.array(matrix), np.ones(len(matrix)))[0]
    largest = max(times)
    largest_speed = largest / max(times[largest], _LEAST_S)
    return float(latency_s), float(MIB / mib_s) if mib_s else largest_speed


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
