"""The speed of collectives between devices, measured or published, as TOML.

::

    ["v100-8x1-9.7gbps"]
    devices = 8
    latency_s = 1e-4
    all_reduce = 595_955_428          # bytes/s, and all_gather, reduce_scatter, all_to_all
    all_reduce_latency_s = 2e-4       # optional, as are those of the others
    source = "..."

Bytes are those of the whole tensor, for all four. In an all-to-all each device sends only its part
of it, so that the speed is up to n times that of the links.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from importlib.resources import files
from math import exp, inf, log
from pathlib import Path
from random import Random
from typing import Any

import msgspec

from jaxpipe.collective.kinds import CollectiveKind
from jaxpipe.errors import PlanError
from jaxpipe.foreign_file import read_text
from jaxpipe.topo.token_bucket import TokenBucket
from jaxpipe.topo.toml_text import parse_toml

_MOST_BYTES = 2**24
SPEEDS = {
    CollectiveKind.ALL_GATHER: "all_gather",
    CollectiveKind.ALL_REDUCE: "all_reduce",
    CollectiveKind.REDUCE_SCATTER: "reduce_scatter",
    CollectiveKind.ALL_TO_ALL: "all_to_all",
}
"""The fields of the speeds."""


def latency_field(speed: str) -> str:
    """Return the field of the latency of a kind, by that of its speed."""
    return f"{speed}_latency_s"


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectiveProfile:
    """The speed of the collectives of a group of devices.

    Args:
        devices: number of devices.
        latency_s: time of a collective of no bytes [s], of kinds without one of their own.
        all_gather: speed of all-gathers, whole tensor [bytes/s].
        all_reduce: the same of all-reduces.
        reduce_scatter: the same of reduce-scatters.
        all_to_all: the same of all-to-alls.
        all_gather_latency_s: time of an all-gather of no bytes [s]; None for `latency_s`.
        all_reduce_latency_s: the same of an all-reduce.
        reduce_scatter_latency_s: the same of a reduce-scatter.
        all_to_all_latency_s: the same of an all-to-all.
        source: where the numbers are from.
        hosts: among which the devices are divided equally.
        bucket: what limits each host's messages to the others, beside these speeds; full when a
            collective starts.
        fullest_host: what the fullest host sends in an all-to-all, over the mean.

    Raises:
        PlanError: there is no device, a speed is not above 0, or the latency is negative.
    """

    devices: int
    latency_s: float = 0.0
    all_gather: float = inf
    all_reduce: float = inf
    reduce_scatter: float = inf
    all_to_all: float = inf
    all_gather_latency_s: float | None = None
    all_reduce_latency_s: float | None = None
    reduce_scatter_latency_s: float | None = None
    all_to_all_latency_s: float | None = None
    source: str = ""
    hosts: int = 1
    bucket: TokenBucket | None = None
    fullest_host: float = 1.0

    def __post_init__(self) -> None:
        if self.devices < 1:
            raise PlanError(f"`devices` must be at least 1, is {self.devices}")
        for name in ("latency_s", *map(latency_field, SPEEDS.values())):
            seconds = getattr(self, name)
            if seconds is not None and not 0 <= seconds < inf:
                raise PlanError(f"`{name}` must be at least 0, is {seconds}; in seconds")
        for name in SPEEDS.values():
            if not getattr(self, name) > 0:
                raise PlanError(f"`{name}` must be above 0 bytes/s, is {getattr(self, name)}")

    def latency_of(self, kind: CollectiveKind) -> float:
        """Return the time of a collective of no bytes.

        >>> profile = CollectiveProfile(devices=2, latency_s=1.0, all_reduce_latency_s=2.0)
        >>> [profile.latency_of(kind) for kind in SPEEDS]
        [1.0, 2.0, 1.0, 1.0]
        """
        seconds = getattr(self, latency_field(SPEEDS[kind]))
        return self.latency_s if seconds is None else seconds

    def seconds(self, kind: CollectiveKind | None, num_bytes: float) -> float:
        """Return the time of a collective of a tensor of `num_bytes`; None is local, and free.

        >>> profile = CollectiveProfile(devices=2, latency_s=1.0, all_reduce=4.0)
        >>> profile.seconds(CollectiveKind.ALL_REDUCE, 8), profile.seconds(None, 8)
        (3.0, 0.0)
        """
        if kind is None or self.devices == 1:
            return 0.0
        if kind is CollectiveKind.ALL_TO_ALL:
            num_bytes *= self.fullest_host
        free_s = self.latency_of(kind) + num_bytes / getattr(self, SPEEDS[kind])
        if self.bucket is None:
            return free_s
        leaves = num_bytes * self._leaving_part(kind)
        return max(free_s, (leaves - self.bucket.bytes_at_once) / self.bucket.bytes_per_s)

    def _leaving_part(self, kind: CollectiveKind) -> float:
        """Return what leaves a host, over the bytes of the whole tensor.

        Rings enter and leave each host once; of an all-to-all, devices send a part to each other.
        """
        if self.hosts == 1:
            return 0.0
        if kind is CollectiveKind.ALL_TO_ALL:
            return (1 - 1 / self.hosts) / self.hosts
        in_ring = 1 - 1 / self.devices
        return 2 * in_ring if kind is CollectiveKind.ALL_REDUCE else in_ring

    def scaled(self, factor: float) -> "CollectiveProfile":
        """Return the profile with all speeds multiplied by `factor`."""
        return replace(self, **{name: factor * getattr(self, name) for name in SPEEDS.values()})

    def noisy(self, amplitude: float, random: Random) -> "CollectiveProfile":
        """Return the profile with each speed multiplied by a factor from 1 - p to 1 + p, uniformly.

        The number of devices is a fact, not a measurement, and stays.
        """
        return replace(
            self,
            **{
                name: getattr(self, name) * (1 + random.uniform(-amplitude, amplitude))
                for name in SPEEDS.values()
            },
        )


def between(low: CollectiveProfile, high: CollectiveProfile, *, devices: int) -> CollectiveProfile:
    """Return the profile for a number of devices between two others, by powers of the number.

    >>> low = CollectiveProfile(devices=2, all_to_all=1.0)
    >>> between(low, replace(low, devices=8, all_to_all=4.0), devices=4).all_to_all
    2.0
    """
    part = log(devices / low.devices) / log(high.devices / low.devices)
    speeds = {
        name: exp((1 - part) * log(getattr(low, name)) + part * log(getattr(high, name)))
        if getattr(low, name) < inf
        else inf
        for name in SPEEDS.values()
    }
    source = f"between {low.source} and {high.source}"
    return replace(low, devices=devices, source=source, **speeds)


def limited(
    slow: CollectiveProfile, fast: CollectiveProfile, *, limits: tuple[float, float], limit: float
) -> CollectiveProfile:
    """Return the profile under a limit of the network, from those under two other limits.

    The time per byte is a + c / limit: c is what the limited link adds, a what the hosts take.

    >>> slow = CollectiveProfile(devices=8, all_to_all=1 / 3)  # 1 + 2 / 1 seconds a byte
    >>> fast = CollectiveProfile(devices=8, all_to_all=1 / 2)  # 1 + 2 / 2
    >>> limited(slow, fast, limits=(1, 2), limit=4).all_to_all == 1 / 1.5
    True
    """
    speeds = {}
    for name in SPEEDS.values():
        low, high = 1 / getattr(slow, name), 1 / getattr(fast, name)
        wire = (low - high) / (1 / limits[0] - 1 / limits[1])
        speeds[name] = 1 / (high - wire / limits[1] + wire / limit) if high else inf
    return replace(fast, source=f"extrapolated from {slow.source} and {fast.source}", **speeds)


def published_profiles() -> dict[str, CollectiveProfile]:
    """Return the profiles that were published, by name.

    >>> published_profiles()["v100-8x1-9.7gbps"].devices
    8
    """
    text = (files("jaxpipe.baselines.autoshard.duplex") / "published_profiles.toml").read_text(
        "utf-8"
    )
    return parse_profiles(text)


def parse_profiles(text: str) -> dict[str, CollectiveProfile]:
    """Return the profiles that a TOML text describes, by name.

    Raises:
        PlanError: a field is missing or wrong.
    """
    try:
        tables: Mapping[str, Any] = parse_toml(text)
        return {
            name: msgspec.convert(table, CollectiveProfile, strict=True)
            for name, table in tables.items()
        }
    except ValueError as error:
        raise PlanError(f"cannot read the profiles of collectives: {error}") from error


def find_profile(name: str) -> CollectiveProfile:
    """Return a published profile by name, or the only one in a file.

    Raises:
        PlanError: there is neither, or the file does not have exactly one.
    """
    published = published_profiles()
    if name in published:
        return published[name]
    try:
        profiles = parse_profiles(read_text(Path(name), most_bytes=_MOST_BYTES))
    except (OSError, ValueError) as error:
        raise PlanError(
            f"`--links` must be a file of `jaxpipe profile --collectives` or one of "
            f"{', '.join(sorted(published))}; {name!r} is not"
        ) from error
    if len(profiles) != 1:
        raise PlanError(f"`--links`: {name} must have one profile, has {len(profiles)}")
    return next(iter(profiles.values()))


def profile_text(name: str, profile: CollectiveProfile) -> str:
    """Return the TOML of a profile."""
    lines = [f'["{name}"]', f"devices = {profile.devices}", f"latency_s = {profile.latency_s!r}"]
    for speed in SPEEDS.values():
        lines.append(f"{speed} = {getattr(profile, speed)!r}")
        latency_s = getattr(profile, latency_field(speed))
        lines += [] if latency_s is None else [f"{latency_field(speed)} = {latency_s!r}"]
    # JSON's strings are TOML's.
    return "\n".join([*lines, f"source = {msgspec.json.encode(profile.source).decode()}"]) + "\n"
