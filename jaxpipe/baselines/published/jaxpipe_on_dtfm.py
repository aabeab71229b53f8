"""jaxpipe's plan for DT-FM's clusters: what its choices gain over DT-FM's runtime.

::

    order      pipelines stay inside regions and hosts, and the all-reduce over replicas visits the
               islands in the order whose slowest link is fastest
    overlap    messages do not wait for earlier ones to arrive, no barrier separates forwards from
               backwards, and each chunk is broadcast as soon as it is reduced
    schedule   1F1B with a deeper warm-up over all microbatches of the step at once
    stages     the number of stages with the shortest step

Each of the four can be left out, to compare their effects.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import combinations

import numpy as np

from jaxpipe.baselines.published.compute_times import durations
from jaxpipe.baselines.published.dtfm import (
    NUM_CHUNKS,
    Placement,
    dtfm_phases,
    reduce_then_broadcast,
    stage_all_reduces,
)
from jaxpipe.baselines.published.dtfm_launch_order import launch_order, pipelines
from jaxpipe.baselines.published.workload import Workload
from jaxpipe.collective import AllReduceKind, Collective, SyncTree, all_reduce_transfers
from jaxpipe.collective.sync_tree import chained
from jaxpipe.errors import PlanError
from jaxpipe.plan import even_partition
from jaxpipe.schedule import Bucket, eager_one_f_one_b, lower
from jaxpipe.simulate.constants import Constants
from jaxpipe.simulate.engine.simulator import simulate_ends
from jaxpipe.simulate.engine.step_model import Phase, StepModel
from jaxpipe.simulate.extrapolate import extrapolate
from jaxpipe.topo import Cluster


def fastest_path(cost: np.ndarray) -> tuple[int, ...]:
    """Return a path through all islands whose costliest step is as cheap as possible.

    `cost[a, b]` is the cost of a step between islands a and b, the same in both directions. Exact
    in the costliest step; ties are broken by the least sum that the search finds.

    >>> fastest_path(np.array([[0, 9, 1], [9, 0, 2], [1, 2, 0]]))
    (0, 2, 1)

    Cost: 2^n n^2 for n islands.

    Source: Held and Karp, "A dynamic programming approach to sequencing problems", 1962, with the
    maximum instead of the sum.
    """
    n = len(cost)
    best: dict[tuple[int, int], tuple[float, float, tuple[int, ...]]] = {
        (1 << i, i): (0.0, 0.0, (i,)) for i in range(n)
    }
    for size in range(1, n):
        for members in combinations(range(n), size):
            visited = sum(1 << i for i in members)
            for last in members:
                worst, total, path = best[visited, last]
                for after in range(n):
                    if visited & 1 << after:
                        continue
                    step = float(cost[last, after])
                    # Tuples compare from the left: worst step, then sum, then path.
                    candidate = (max(worst, step), total + step, (*path, after))
                    key = (visited | 1 << after, after)
                    if key not in best or candidate < best[key]:
                        best[key] = candidate
    full = (1 << n) - 1
    return min(best[full, last] for last in range(n))[2]


@dataclass(frozen=True, slots=True, kw_only=True)
class Choices:
    """The choices that the plan makes; the others are as in DT-FM's runtime with its scheduler."""

    order: bool = True
    overlap: bool = True
    schedule: bool = True
    num_stages: tuple[int, ...] = (4, 8, 16)
    """The numbers of stages to choose from; DT-FM has 8."""


EVERYTHING = Choices()
_SHORT_PER_STAGE = 4
"""Microbatches of a short step, per stage."""


def jaxpipe_step(
    cluster: Cluster,
    *,
    workload: Workload,
    constants: Constants,
    choices: Choices = EVERYTHING,
) -> StepModel:
    """Return a step of jaxpipe's plan.

    Cost: two short simulated steps for each number of stages, if there are several to choose among.

    Raises:
        PlanError: there are too few devices or layers for any number of stages.
    """
    job = partial(_job, cluster, constants=constants.on(cluster), choices=choices)
    possible = [
        number for number in choices.num_stages if number <= min(len(cluster), workload.num_layers)
    ]
    if not possible:
        raise PlanError(
            f"`num_stages` ({choices.num_stages}) must be within {len(cluster)} devices and "
            f"{workload.num_layers} layers; allow fewer stages"
        )
    best, *others = possible
    if others:
        best = min(possible, key=lambda number: _extrapolated_s(job, number, workload=workload))
    return job(best, workload=workload)


def _extrapolated_s(job: Callable[..., StepModel], num_stages: int, *, workload: Workload) -> float:
    """Return the seconds of a step, extrapolated from two short ones if it is long."""

    def seconds(batch: int) -> float:
        return simulate_ends(job(num_stages, workload=replace(workload, batch=batch))).last_s

    num_replicas = len(job(num_stages, workload=workload).placement)
    # A multiple of the replicas, so that short steps have as many of them.
    short = num_replicas * _SHORT_PER_STAGE * num_stages
    return extrapolate(seconds, size=workload.batch, short=short)


def _job(
    cluster: Cluster,
    num_stages: int,
    *,
    workload: Workload,
    constants: Constants,
    choices: Choices,
) -> StepModel:
    placement = pipelines(
        cluster, launch_order(cluster), num_stages=num_stages, batch=workload.batch
    )
    cut = even_partition(num_layers=workload.num_layers, num_stages=num_stages)
    speeds = constants.speeds(workload.precision)
    seconds = durations(cluster, placement, cut, workload=workload, speeds=speeds)
    # The bytes of the first stage, which has the embeddings and so the most.
    tree = _islands(cluster, placement, num_bytes=workload.gradient_bytes(cut[0], is_first=True))

    def all_reduce(members: Sequence[int], num_bytes: float) -> Collective:
        ranks = _relabel(tree, members) if choices.order else tuple(members)
        if not choices.overlap:
            return reduce_then_broadcast(ranks, num_bytes)
        return all_reduce_transfers(
            AllReduceKind.TREE,
            chained(ranks),
            num_bytes=num_bytes,
            chunk_bytes=num_bytes / NUM_CHUNKS,
        )

    return StepModel(
        cluster=cluster,
        placement=placement,
        phases=_phases(
            num_stages,
            num_replicas=len(placement),
            num_microbatches=workload.batch // len(placement),
            choices=choices,
        ),
        forward_s=seconds.forward_s,
        backward_s=seconds.backward_s,
        activation_bytes=workload.activation_bytes,
        collectives={
            Bucket.STAGE: stage_all_reduces(
                cut, num_replicas=len(placement), workload=workload, all_reduce=all_reduce
            )
        },
        messages=constants.network.messages(),
        gradients=constants.network.gradients(),
        nic_efficiency=constants.network.nic_efficiency,
    )


def _phases(
    num_stages: int, *, num_replicas: int, num_microbatches: int, choices: Choices
) -> tuple[Phase, ...]:
    if choices.schedule:
        schedule = eager_one_f_one_b(num_stages=num_stages, num_microbatches=num_microbatches)
        return (Phase(schedule=lower(schedule, tied=False, num_replicas=num_replicas)),)
    phases = dtfm_phases(
        num_stages=num_stages, num_replicas=num_replicas, num_microbatches=num_microbatches
    )
    return tuple(replace(phase, meets=phase.meets and not choices.overlap) for phase in phases)


def _islands(
    cluster: Cluster, placement: Placement, *, num_bytes: float
) -> tuple[tuple[int, ...], ...]:
    """Return the replicas of each region, regions in the order of the all-reduce."""
    regions: dict[str, list[int]] = {}
    for replica, row in enumerate(placement):
        regions.setdefault(cluster.devices[row[0]].region, []).append(replica)
    islands = list(regions.values())
    leaders = [placement[island[0]][0] for island in islands]
    # Both directions are used; the slower one of each pair counts.
    one_way = cluster.latency_s + num_bytes / cluster.bandwidth_bytes_per_s
    cost = np.maximum(one_way, one_way.T)[np.ix_(leaders, leaders)]
    return tuple(tuple(islands[index]) for index in fastest_path(cost))


def _relabel(tree: tuple[tuple[int, ...], ...], members: Sequence[int]) -> SyncTree:
    """Return the tree of replicas as a tree of the ranks that hold one stage of them."""
    return tuple(
        members[island[0]] if len(island) == 1 else tuple(members[replica] for replica in island)
        for island in tree
    )
