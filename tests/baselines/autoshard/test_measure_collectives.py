"""Collectives are timed by a clock that all ranks share, over ranks that are threads."""

import math
import time

import pytest

from jaxpipe.baselines.autoshard.duplex import CollectiveProfile, profile_text
from jaxpipe.baselines.autoshard.duplex.collective_profile import parse_profiles
from jaxpipe.baselines.autoshard.measure_collectives import (
    MIB,
    MOST_ROUNDS,
    CollectiveSettings,
    fitted_line,
    impossible,
    measure_collectives,
    measure_impossible_again,
    warn_of_impossible,
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
    sizes = (8, 4 * MIB, 16 * MIB, 64 * MIB)
    for speed in (1e9, 4e9):
        times = {size: 2e-3 + size / speed for size in sizes}
        assert fitted_line(times) == pytest.approx((2e-3, speed))
        disturbed = {**times, 4 * MIB: 1.1 * times[4 * MIB]}
        assert fitted_line(disturbed) == pytest.approx((2e-3, speed), rel=0.06)


def test_each_kind_has_its_own_latency() -> None:
    """A clock by which an all-to-all takes three seconds, and the others one."""

    def work(transport: Transport) -> CollectiveProfile:
        looks = iter(range(10_000))
        calls = [*[1.0] * 12, *[3.0] * 4, *[1.0] * 6, *[3.0] * 2, *[1.0] * 1000]
        now_s = 0.0

        def clock() -> float:
            nonlocal now_s
            number = next(looks)
            now_s += calls[number // 2] if number % 2 else 0.0
            return now_s

        settings = CollectiveSettings(sizes_bytes=(MIB,), repeats=1)
        return measure_collectives(transport, settings, clock=clock)

    profile = run_ranks(2, work)[0]
    latencies = [profile.latency_of(kind) for kind in CollectiveKind]
    assert sorted(latencies) == pytest.approx([1.0, 1.0, 1.0, 3.0])
    assert profile.latency_of(CollectiveKind.ALL_TO_ALL) == pytest.approx(3.0)
    assert profile.latency_s == pytest.approx(1.5)
    (again,) = parse_profiles(profile_text("again", profile)).values()
    assert again == profile


def test_what_includes_another_and_took_less_time_is_impossible() -> None:
    part, both = CollectiveKind.REDUCE_SCATTER, CollectiveKind.ALL_REDUCE
    assert not impossible({part: {4: 1.0, 8: 2.0}, both: {4: 2.0, 8: 4.0}})
    assert impossible({part: {4: 3.0, 8: 3.5}, both: {4: 2.0, 8: 4.0}}) == [((part, 4), (both, 4))]
    assert impossible({part: {4: 2.0, 8: 1.0}}) == [((part, 4), (part, 8))]


@pytest.mark.parametrize("num_disturbed", [1, 1000])
def test_an_impossible_result_is_measured_again(
    num_disturbed: int, caplog: pytest.LogCaptureFixture
) -> None:
    """Reduce-scatters that other work made three times as slow as the all-reduce."""
    part, size = CollectiveKind.REDUCE_SCATTER, MIB
    times = {part: {8: 1.0, size: 6.0}, CollectiveKind.ALL_REDUCE: {8: 1.5, size: 2.0}}
    taken_s = iter([*[6.0] * (num_disturbed - 1), *[1.1] * 9])
    measured = list[tuple[CollectiveKind, int]]()

    def measured_s(kind: CollectiveKind, num_bytes: int) -> float:
        measured.append((kind, num_bytes))
        return next(taken_s)

    measure_impossible_again(times, measured_s)
    warn_of_impossible(times)
    if num_disturbed == 1:
        assert measured == [(part, size)]
        assert times[part][size] == 1.1
        assert not caplog.messages
    else:
        assert measured == [(part, size)] * MOST_ROUNDS
        (message,) = caplog.messages
        assert "reduce-scatter of 1048576 bytes took 6 s, more than all-reduce of" in message


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
