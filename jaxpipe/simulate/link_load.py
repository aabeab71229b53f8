"""Load of links in a step: the bytes that each rank sends to each other one.

::

    messages between stages      the sends of all programs
    gradients, parameters        the transfers of all collectives
"""

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TypeAlias

from jaxpipe.schedule import Op
from jaxpipe.simulate.engine.step_model import StepModel

_Loads: TypeAlias = defaultdict[tuple[int, int], float]
"""Bytes by sender and receiver."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkLoad:
    """The bytes of a step from one end to another, and the seconds that they occupy the link.

    `share` is the part of the step in which the link is occupied: that of the busiest pair of
    devices between the two ends.
    """

    source: str
    to: str
    activation_bytes: float
    gradient_bytes: float
    share: float

    @property
    def num_bytes(self) -> float:
        """All bytes."""
        return self.activation_bytes + self.gradient_bytes

    def beside(self, other: "LinkLoad") -> "LinkLoad":
        """Return the load with that of other pairs of devices between the same ends."""
        return replace(
            self,
            activation_bytes=self.activation_bytes + other.activation_bytes,
            gradient_bytes=self.gradient_bytes + other.gradient_bytes,
            share=max(self.share, other.share),
        )


def link_loads(job: StepModel, *, step_s: float, names: Mapping[int, str]) -> tuple[LinkLoad, ...]:
    """Return the load between ends, which `names` gives for each rank, the busiest link first.

    `step_s` are the seconds of the step. With names of regions, ranks of one region are one end.
    """
    activations, gradients = _activations(job), _gradients(job)
    bandwidth = job.cluster.bandwidth_bytes_per_s
    ends: dict[tuple[str, str], list[tuple[int, int]]] = {}
    for pair in dict.fromkeys((*activations, *gradients)):
        ends.setdefault((names[pair[0]], names[pair[1]]), []).append(pair)
    loads = []
    for (sender, receiver), pairs in ends.items():
        busy_s = max(
            (activations[source, to] + gradients[source, to])
            / bandwidth[job.device(source), job.device(to)]
            for source, to in pairs
        )
        loads.append(
            LinkLoad(
                source=sender,
                to=receiver,
                activation_bytes=sum(activations[pair] for pair in pairs),
                gradient_bytes=sum(gradients[pair] for pair in pairs),
                share=float(busy_s) / step_s,
            )
        )
    return tuple(sorted(loads, key=lambda load: (-load.share, load.source, load.to)))


def _activations(job: StepModel) -> _Loads:
    """Return the bytes of messages between stages, by sender and receiver."""
    loads: _Loads = defaultdict(float)
    for replica, first in enumerate(job.first_ranks):
        size = len(job.placement[replica])
        for phase in job.phases:
            for number, program in enumerate(phase.of(replica)):
                for instruction in program:
                    if instruction.op is Op.SEND and instruction.peer is not None:
                        pair = (first + number, first + instruction.peer % size)
                        loads[pair] += job.message_bytes(*pair)
    return loads


def _gradients(job: StepModel) -> _Loads:
    """Return the bytes of collectives, by sender and receiver."""
    loads: _Loads = defaultdict(float)
    for collective in (*(c for each in job.collectives.values() for c in each), *job.gathers):
        for transfer in collective:
            loads[transfer.source, transfer.destination] += transfer.num_bytes
    return loads
