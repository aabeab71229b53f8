"""Collectives are timed by a clock that all ranks share, over ranks that are threads."""

import math
import time

import pytest

from jaxpipe.baselines.autoshard.duplex import CollectiveProfile
from jaxpipe.baselines.autoshard.measure_collectives import (
    MIB,
    CollectiveSettings,
    fitted_speeds,
    measure_collectives,
)
from jaxpipe.collective.kinds import CollectiveKind
from jaxpipe.comm.local import run_ranks
from jaxpipe.comm.transport import Transport
from jaxpipe.errors import ConfigError

SPEEDS = ("all_gather", "all_reduce", "reduce_scatter", "all_to_all")


@pytest.mark.parametrize("num_ranks", [2, 3])
def test_all_ranks_get_the_same_profile(num_ranks: int) -> None:
    settings = CollectiveSettings(sizes_bytes=(MIB, 2 * MIB), repeats=2)

    def work(transport: Transport) -> CollectiveProfile:
        return measure_collectives(transport, settings, clock=time.perf_counter)

    first, *others = run_ranks(num_ranks, work)
    assert all(each == first for each in others)
    assert first.devices == num_ranks
    assert first.latency_s > 0
    assert all(0 < getattr(first, name) < math.inf for name in SPEEDS)


def test_speed_is_bytes_of_the_whole_array_over_seconds_without_latency() -> None:
    """A clock that advances by a second at each look: each call takes one, and latency is one."""
    settings = CollectiveSettings(sizes_bytes=(MIB,), repeats=1)

    def work(transport: Transport) -> CollectiveProfile:
        seconds = iter(range(1000))
        return measure_collectives(transport, settings, clock=lambda: float(next(seconds)))

    profile = run_ranks(2, work)[0]
    assert profile.latency_s == pytest.approx(1.0, rel=1e-12)
    # No time is left above latency: then all of the call counts.
    assert profile.all_to_all == MIB / 1.0


def test_latency_and_speeds_are_fitted_to_all_sizes() -> None:
    """A latency of 2 ms, and one size that other work made 10 % slower."""
    kinds = {CollectiveKind.ALL_GATHER: 1e9, CollectiveKind.ALL_TO_ALL: 4e9}
    sizes = (8, 4 * MIB, 16 * MIB, 64 * MIB)
    times = {kind: [(size, 2e-3 + size / speed) for size in sizes] for kind, speed in kinds.items()}
    latency_s, speeds = fitted_speeds(times)
    assert latency_s == pytest.approx(2e-3)
    assert speeds == pytest.approx(kinds)
    slow = [
        (size, seconds * (1.1 if size == 4 * MIB else 1))
        for size, seconds in times[CollectiveKind.ALL_GATHER]
    ]
    _, disturbed = fitted_speeds({**times, CollectiveKind.ALL_GATHER: slow})
    assert disturbed[CollectiveKind.ALL_GATHER] == pytest.approx(1e9, rel=0.06)
    assert disturbed[CollectiveKind.ALL_TO_ALL] == pytest.approx(4e9, rel=0.06)


def test_sizes_that_would_exceed_the_budget_are_skipped() -> None:
    looks: list[float] = []
    settings = CollectiveSettings(sizes_bytes=(MIB, 4 * MIB), repeats=1, budget_s=3.0)

    def work(transport: Transport) -> CollectiveProfile:
        seconds = iter(range(1000))

        def clock() -> float:
            if transport.rank == 0:
                looks.append(0.0)
            return float(next(seconds))

        return measure_collectives(transport, settings, clock=clock)

    run_ranks(2, work)
    # Two looks a call: four calls for latency, two for the smaller size; none for the larger one.
    assert len(looks) == 4 * 2 * (4 + 2)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"sizes_bytes": ()}, "`sizes_bytes` must be at least"),
        ({"sizes_bytes": (5,)}, "`sizes_bytes` must be at least"),
        ({"repeats": 0}, "`repeats` must be at least 1, is 0"),
    ],
)
def test_wrong_settings_are_errors(fields: dict[str, tuple[int, ...]], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        CollectiveSettings(**fields)  # pyright: ignore[reportArgumentType]
