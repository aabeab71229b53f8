"""Stages on submeshes: their cost, the time of a pipeline of them, and the possible submeshes.

::

    devices     0 1 │ 2 3 4 5 │ 6 7        a pipeline of three stages on uneven submeshes
    layers      0 1 │ 2 ... 6 │ 7 8
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import groupby, pairwise
from typing import TypeAlias

from jaxpipe.topo import Cluster


@dataclass(frozen=True, slots=True, kw_only=True)
class StageCost:
    """The cost of some layers on some devices.

    `seconds` are those of the forward and the backward of one microbatch. Each device holds
    `held_bytes`, plus `live_bytes` for each microbatch in flight.
    """

    seconds: float
    held_bytes: float = 0.0
    live_bytes: float = 0.0


StageCosts: TypeAlias = Callable[[range, range], StageCost | None]
"""The cost of a stage of these layers on these devices, or None if it is impossible."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SubmeshStage:
    """Consecutive layers on consecutive devices of the cluster."""

    layers: range
    devices: range
    cost: StageCost


@dataclass(frozen=True, slots=True, kw_only=True)
class StagedModel:
    """All stages, first to last, and the predicted seconds of a step."""

    stages: tuple[SubmeshStage, ...]
    step_s: float

    @property
    def slowest_s(self) -> float:
        """The seconds that the slowest stage takes for a microbatch."""
        return max(stage.cost.seconds for stage in self.stages)

    @property
    def cut(self) -> tuple[int, ...]:
        """The number of layers of each stage."""
        return tuple(len(stage.layers) for stage in self.stages)


def submeshes(cluster: Cluster) -> tuple[range, ...]:
    """Return the ranges of devices that a stage may have.

    Inside a host a power of two of neighbours, or all of them; otherwise whole hosts that follow
    each other.

    >>> from jaxpipe import topo
    >>> submeshes(topo.load("two-region"))[:4]
    (range(0, 1), range(0, 2), range(0, 3), range(0, 4))

    Source: Zheng et al., "Alpa", OSDI 2022, section 5.2.
    """
    submeshes_found = set(_inside_hosts(cluster))
    edges = [0]  # the first device of each host, and the end
    for _, members in groupby(cluster.devices, key=lambda device: device.host):
        edges.append(edges[-1] + len(list(members)))
    # The paper's shapes, (1, 2 ** m) and (n, M): they always tile the cluster.
    submeshes_found |= {range(a, b) for i, a in enumerate(edges) for b in edges[i + 1 :]}
    return tuple(sorted(submeshes_found, key=lambda devices: (devices.start, devices.stop)))


def _inside_hosts(cluster: Cluster) -> Iterator[range]:
    first = 0
    for _, members in groupby(cluster.devices, key=lambda device: device.host):
        size = len(list(members))
        for power in range(size.bit_length()):  # every power of two <= size
            starts = range(first, first + size - 2**power + 1)
            yield from (range(start, start + 2**power) for start in starts)
        first += size


def step_s(
    stages: tuple[SubmeshStage, ...], *, num_microbatches: int, hop_s: Callable[[int], float]
) -> float:
    """Return the seconds of a step: once through all stages, then the slowest for the others.

    `hop_s(device)` are the seconds that a microbatch takes from the previous device to this one,
    plus those of its gradient back.

    Source: Zheng et al., "Alpa", OSDI 2022, section 5.2, equation 2.
    """
    once_s = sum(stage.cost.seconds for stage in stages)
    # `pairwise` leaves out the first stage: nothing is sent to it.
    hops_s = sum(hop_s(behind.devices.start) for _, behind in pairwise(stages))
    slowest_s = max(stage.cost.seconds for stage in stages)
    return once_s + hops_s + (num_microbatches - 1) * slowest_s
