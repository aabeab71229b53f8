"""Lower bound of a step: no plan for these devices is faster, whatever it places where.

**Compute.** W seconds of work of the profiled device, on devices with S times its speed together,
take W / S at least.

**The narrowest cut.** Divide the devices into two sides, A and B, that exchange at most b bytes/s
in each direction. Of the layers, some are held on A alone, some on B alone, some on both::

    A alone and B alone   every sample crosses, there and back: batch x activations / b
    none on B alone       B works on layers of both sides only, whose gradients cross: with T the
                          seconds of the step, A does at most T S(A) of the work, so B does
                          W - T S(A), on layers with g(W - T S(A)) bytes of gradients at least
    none on A alone       the same with A and B exchanged

g(w) are the least gradients of layers with work w in all, the lightest first, layers divisible. A
plan on one side alone is the case w = 0. The least T of the three is a bound, and the bounds of all
cuts tried hold together: a region or several against the others, and a host against the others.

Messages inside groups, latencies, bubbles and the optimizer only add to it. Where layers were
measured with microbatches of several sizes, each counts with its fewest seconds per sample.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import combinations
from math import inf

import numpy as np

from jaxpipe.plan.cost.layer_profile import Part, Profile
from jaxpipe.topo import Cluster

_MOST_REGIONS = 8
"""Of more regions, only single ones are cut off."""
_MOST_HOSTS = 256
"""Of more hosts, none is cut off by itself: a cut takes the square of the devices."""
_HALVINGS = 60


@dataclass(frozen=True, slots=True, kw_only=True)
class LowerBound:
    """The least seconds of a step, by compute alone and with the narrowest cut."""

    compute_s: float
    cut_s: float

    @property
    def seconds(self) -> float:
        """The larger of both."""
        return max(self.compute_s, self.cut_s)


def lower_bound(
    cluster: Cluster,
    profile: Profile,
    *,
    slow: np.ndarray,
    batch: int,
    gradient_bytes: float = 4,
    local_factor: float = 1.0,
) -> LowerBound:
    """Return the bound of a step of `batch` samples; `slow` is that of `slowness`.

    `local_factor` is by how much the computes of a stage may be shorter than profiled.
    """
    sample_s = _sample_seconds(profile)
    computes = sample_s > 0
    if not computes.any():
        return LowerBound(compute_s=0.0, cut_s=0.0)
    work_s = batch * min(1.0, local_factor) * sample_s[computes]
    num_gradients = np.array([part.num_gradients for part in _parts(profile)])[computes]
    gradients = _Gradients.of(work_s, num_gradients * gradient_bytes)
    one = profile.scaled(microbatch=1)
    speeds = 1 / slow
    # A plan may cut where the fewest bytes cross.
    activations = float(batch * min((one.activation_bytes, *one.narrow_bytes.values())))
    return LowerBound(
        compute_s=float(work_s.sum() / speeds.sum()),
        cut_s=max(
            (_cut_s(cluster, side, speeds, gradients, activations) for side in _sides(cluster)),
            default=0.0,
        ),
    )


def _parts(profile: Profile) -> tuple[Part, ...]:
    return (profile.embed, *profile.layers, profile.head)


def _sample_seconds(profile: Profile) -> np.ndarray:
    """Return the fewest seconds of each part for a sample, over all measured microbatch sizes."""
    seconds = [
        [(part.forward_s + part.backward_s) / size.microbatch for part in _parts(size)]
        for size in (profile, *profile.sizes)
    ]
    return np.min(seconds, axis=0)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Gradients:
    """The least bytes of gradients of layers by their work: a convex curve through points."""

    work_s: np.ndarray
    num_bytes: np.ndarray

    @classmethod
    def of(cls, work_s: np.ndarray, num_bytes: np.ndarray) -> "_Gradients":
        """Return the curve: layers with the fewest bytes for their work come first."""
        order = np.argsort(num_bytes / work_s, kind="stable")
        points = [np.concatenate(([0.0], np.cumsum(row[order]))) for row in (work_s, num_bytes)]
        return cls(work_s=points[0], num_bytes=points[1])

    def least(self, work_s: float) -> float:
        """Return the bytes for so much work, none for less than none."""
        return float(np.interp(work_s, self.work_s, self.num_bytes))

    @property
    def all_work_s(self) -> float:
        """The work of all layers."""
        return float(self.work_s[-1])


def _cut_s(
    cluster: Cluster,
    side: np.ndarray,
    speeds: np.ndarray,
    gradients: _Gradients,
    activations: float,
) -> float:
    """Return the bound of a cut, of which `side` says which devices are on the one side."""
    rate = min(_capacity(cluster, side), _capacity(cluster, ~side))
    shared_s = (
        _shared_s(float(speeds[members].sum()), rate, gradients) for members in (side, ~side)
    )
    return min(activations / rate, *shared_s)


def _shared_s(speed: float, rate: float, gradients: _Gradients) -> float:
    """Return the least seconds in which one side of this speed, with help from the other, is done.

    The seconds of the gradients fall with the seconds of the step: bisection finds where they meet.
    """
    low_s, high_s = 0.0, gradients.all_work_s / speed
    for _ in range(_HALVINGS):
        middle_s = (low_s + high_s) / 2
        if gradients.least(gradients.all_work_s - middle_s * speed) / rate > middle_s:
            low_s = middle_s
        else:
            high_s = middle_s
    return low_s


def _capacity(cluster: Cluster, side: np.ndarray) -> float:
    """Return the most bytes/s from a side to the other: of all links together, and of all NICs.

    Links between regions reach no more together than their trunk.
    """
    hosts = np.array(cluster.host_of)
    links = float(cluster.alone_bytes_per_s[np.ix_(side, ~side)].sum())
    if cluster.trunks:
        regions = np.array([device.region for device in cluster.devices])
        for trunk in cluster.trunks:
            pairs = np.ix_(side & (regions == trunk.source), ~side & (regions == trunk.destination))
            joined = float(cluster.alone_bytes_per_s[pairs].sum())
            links -= max(0.0, joined - trunk.bytes_per_s)
    # A host on both sides exchanges without its NIC.
    if set(hosts[side]) & set(hosts[~side]):
        return links
    leaving = [cluster.hosts[host] for host in set(hosts[side].tolist())]
    # What a token bucket lets through has no rate: such a host limits nothing here.
    out = sum(inf if host.burst_bytes else host.egress_bytes_per_s for host in leaving)
    into = sum(cluster.hosts[host].ingress_bytes_per_s for host in set(hosts[~side].tolist()))
    return min(links, out, into)


def _sides(cluster: Cluster) -> Iterator[np.ndarray]:
    """Yield cuts as masks over devices."""
    names = np.array([device.region for device in cluster.devices])
    regions = list(dict.fromkeys(names.tolist()))
    most = len(regions) // 2 if len(regions) <= _MOST_REGIONS else 1
    for num in range(1, most + 1):
        for combination in combinations(regions, num):
            yield np.isin(names, combination)
    hosts = np.array([device.host for device in cluster.devices])
    if 1 < len(cluster.hosts) <= _MOST_HOSTS:
        yield from (mask for host in cluster.hosts if (mask := hosts == host.name).any())
