"""A layout as a simulated step: groups of unlike GPUs, and links whose speed depends on messages.

::

    layout + costs ──► seconds of each group's forward, backward and update, for its own layers
                  ──► a cluster of one device to a group, with the bandwidth of the message that the
                      link carries: activations between stages, gradients between replicas

A link of the simulator has one bandwidth. That is enough here, as all messages of a link have the
same size: replicas of a stage exchange shares of gradients, stages of a replica activations.
"""

from collections.abc import Iterator, Sequence
from itertools import accumulate, pairwise
from typing import Protocol

import numpy as np

from jaxpipe.collective import AllReduceKind, Collective, all_reduce_transfers
from jaxpipe.errors import PlanError
from jaxpipe.plan.cost import Part
from jaxpipe.schedule import Bucket, ScheduleKind, generate, lower
from jaxpipe.search.layout.layout import Group, Layout
from jaxpipe.simulate.engine.step_model import Phase, StepModel
from jaxpipe.topo import Cluster, Device

_INSTANT_S = 1e-12
"""A backward of an embedding may be measured as nothing; the simulator wants some time."""


class LayoutCosts(Protocol):
    """The costs of one model on groups of GPUs."""

    def part(self, group: Group, layers: range, microbatch: int) -> Part:
        """Return layers on a group: seconds of a microbatch, parameters of all its GPUs."""
        ...

    def output_bytes(self, microbatch: int) -> float:
        """Return the bytes of a microbatch's activations between two stages."""
        ...

    def activation_rate(self, one: Group, other: Group, num_bytes: float) -> float:
        """Return the bytes/s of a message between stages."""
        ...

    def gradient_rate(self, one: Group, other: Group, num_bytes: float) -> float:
        """Return the bytes/s of a message between replicas."""
        ...


def layout_step(
    layout: Layout,
    costs: LayoutCosts,
    *,
    batch: int,
    blocking: bool,
    gradient_bytes: int = 4,
) -> StepModel:
    """Return one step of a layout: 1F1B, and then a ring all-reduce of each stage's gradients.

    Raises:
        PlanError: the stages have unequal numbers of replicas.
    """
    groups = _groups(layout)
    parts = [
        [
            costs.part(group, layers, layout.microbatch)
            for group, layers in zip(row, _layers(layout), strict=True)
        ]
        for row in groups
    ]
    num_microbatches = layout.num_microbatches(batch)
    compute = generate(
        ScheduleKind.ONE_F_ONE_B, num_stages=layout.num_stages, num_microbatches=num_microbatches
    )
    schedule = lower(compute, num_replicas=layout.num_replicas, tied=False)
    # Groups of a stage may shard differently, and replicate different small layers.
    reduced = [
        max(row[stage].num_gradients for row in parts) * gradient_bytes
        for stage in range(layout.num_stages)
    ]
    flat = [part for row in parts for part in row]
    return StepModel(
        cluster=_cluster(layout, groups, costs, reduced),
        placement=_ranks(layout),
        phases=(Phase(schedule=schedule),),
        forward_s=tuple(max(part.forward_s, _INSTANT_S) for part in flat),
        backward_s=tuple(max(part.backward_s, _INSTANT_S) for part in flat),
        update_s=tuple(part.update_s for part in flat),
        activation_bytes=costs.output_bytes(layout.microbatch),
        collectives=_collectives(layout, reduced),
        blocking=blocking,
    )


def _groups(layout: Layout) -> list[tuple[Group, ...]]:
    """Return the groups of each replica, by stage."""
    stages = [[group for group, count in stage for _ in range(count)] for stage in layout.stages]
    if len({len(stage) for stage in stages}) > 1:
        raise PlanError(
            "a layout is simulated if every replica has all stages: `stages` have "
            f"{[len(stage) for stage in stages]} replicas; make them equal"
        )
    return list(zip(*stages, strict=True))


def _layers(layout: Layout) -> list[range]:
    return [range(first, end) for first, end in pairwise([0, *accumulate(layout.cut)])]


def _ranks(layout: Layout) -> tuple[tuple[int, ...], ...]:
    size = layout.num_stages
    return tuple(
        tuple(range(replica * size, (replica + 1) * size)) for replica in range(layout.num_replicas)
    )


def _collectives(layout: Layout, reduced: Sequence[float]) -> dict[Bucket, tuple[Collective, ...]]:
    if layout.num_replicas == 1:
        return {}
    columns = zip(*_ranks(layout), strict=True)
    return {
        Bucket.STAGE: tuple(
            all_reduce_transfers(AllReduceKind.RING, column, num_bytes=num_bytes)
            for column, num_bytes in zip(columns, reduced, strict=True)
        )
    }


def _cluster(
    layout: Layout, groups: list[tuple[Group, ...]], costs: LayoutCosts, reduced: Sequence[float]
) -> Cluster:
    """Return a cluster in which each link has the bandwidth of the messages that it carries."""
    flat = [group for row in groups for group in row]
    # Pairs that exchange nothing keep a bandwidth that no message uses.
    rates = np.ones((len(flat), len(flat)))
    np.fill_diagonal(rates, np.inf)
    output_bytes = costs.output_bytes(layout.microbatch)
    for a, b in _between_stages(layout):
        rates[a, b] = costs.activation_rate(flat[a], flat[b], output_bytes)
        rates[b, a] = costs.activation_rate(flat[b], flat[a], output_bytes)
    for a, b in _between_replicas(layout):
        share = reduced[a % layout.num_stages] / layout.num_replicas
        rates[a, b] = costs.gradient_rate(flat[a], flat[b], share)
    return Cluster(
        name="layout",
        devices=tuple(
            Device(name=f"n{number}", host=f"n{number}", region=group.zone)
            for number, group in enumerate(flat)
        ),
        latency_s=np.zeros_like(rates),
        bandwidth_bytes_per_s=rates,
    )


def _between_stages(layout: Layout) -> Iterator[tuple[int, int]]:
    for row in _ranks(layout):
        yield from pairwise(row)


def _between_replicas(layout: Layout) -> Iterator[tuple[int, int]]:
    """Yield the neighbours in the ring of each stage; the last sends to the first."""
    for column in zip(*_ranks(layout), strict=True):
        if len(column) > 1:
            yield from zip(column, (*column[1:], column[0]), strict=True)
