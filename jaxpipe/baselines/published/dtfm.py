"""DT-FM as published: GPipe in steps of 64 microbatches, with a barrier after the forwards.

::

    every pipeline     64 forwards │ 64 backwards   64 forwards │ 64 backwards   ...   reduce
    all ranks meet                 │                            │                      broadcast

Replicas all-reduce a stage's gradients as one flat buffer along a chain in rank order, without
overlap; rank r is stage r % 8 of pipeline r // 8.

Source: Yuan et al., "Decentralized Training of Foundation Models in Heterogeneous Environments",
NeurIPS 2022; the runtime that was published with it.
"""

from collections.abc import Callable, Sequence
from typing import TypeAlias

from jaxpipe.baselines.published.compute_times import durations
from jaxpipe.baselines.published.dtfm_launch_order import launch_order, pipelines, shuffled
from jaxpipe.baselines.published.workload import Workload
from jaxpipe.collective import (
    AllReduceKind,
    BarrierKind,
    Collective,
    SyncTree,
    all_reduce_transfers,
    broadcast_transfers,
    reduce_transfers,
)
from jaxpipe.collective.sync_tree import chained
from jaxpipe.collective.transfers import in_sequence
from jaxpipe.plan import even_partition
from jaxpipe.schedule import Bucket, Instruction, Op, Schedule, gpipe, lower
from jaxpipe.simulate.constants import Constants
from jaxpipe.simulate.engine.step_model import Phase, StepModel
from jaxpipe.topo import Cluster

NUM_CHUNKS = 128
"""The number of chunks of gradients; NCCL's are smaller, and take longer to simulate."""


Algorithm: TypeAlias = Callable[[Sequence[int], float], Collective]
"""From the ranks, in order, and the bytes of each of them, to the transfers of an all-reduce."""


def along(kind: AllReduceKind) -> Algorithm:
    """Return an all-reduce of the runtime, over a flat tree and in one chunk."""
    return lambda members, num_bytes: all_reduce_transfers(
        kind, tuple(members), num_bytes=num_bytes
    )


def sequential_chain(members: Sequence[int], num_bytes: float) -> Collective:
    """Reduce to the first replica along a chain, then broadcast, as DT-FM's runs did.

    NCCL's chains follow a ring::

        reduce       1 ──► 2 ──► ... ──► 7 ──► 0
        broadcast    0 ──► 1 ──► 2 ──► ... ──► 7
    """
    first, *others = members
    return _reduce_then_broadcast(
        chained((first, *reversed(others))), chained((first, *others)), num_bytes
    )


def reduce_then_broadcast(tree: SyncTree, num_bytes: float) -> Collective:
    """Reduce along the members of each island; broadcast once the last chunk is complete.

    This uses links in one direction at a time, and takes about twice as long as the runtime's
    chain, which broadcasts each chunk as soon as it is complete.
    """
    # A chain inside islands as well: each replica receives from one other only.
    path = chained(tree)
    return _reduce_then_broadcast(path, path, num_bytes)


def _reduce_then_broadcast(up: SyncTree, down: SyncTree, num_bytes: float) -> Collective:
    return in_sequence(
        reduce_transfers(up, num_bytes=num_bytes, num_chunks=NUM_CHUNKS),
        broadcast_transfers(down, num_bytes=num_bytes, num_chunks=NUM_CHUNKS),
    )


def stage_all_reduces(
    cut: tuple[int, ...], *, num_replicas: int, workload: Workload, all_reduce: Algorithm
) -> tuple[Collective, ...]:
    """Return each stage's all-reduce over its replicas, in the order of their ranks."""
    num_stages = len(cut)
    return tuple(
        all_reduce(
            range(stage, num_stages * num_replicas, num_stages),
            workload.gradient_bytes(cut[stage], is_first=stage == 0),
        )
        for stage in range(num_stages)
    )


NUM_STAGES = 8
_STEP_MICROBATCHES = 64

Placement: TypeAlias = tuple[tuple[int, ...], ...]


def scheduled(cluster: Cluster, *, batch: int, num_stages: int = NUM_STAGES) -> Placement:
    """Return the placement of DT-FM's scheduler: pipelines inside islands, in launch order.

    This is documented for its cases 3 to 5; for 1 and 2 it is inferred from their times.
    """
    return pipelines(cluster, launch_order(cluster), num_stages=num_stages, batch=batch)


def unscheduled(cluster: Cluster, *, batch: int, seed: int) -> Placement:
    """Return the random placement of the published runs without a scheduler.

    The first device is rank 0; the ranks of the others are shuffled.
    """
    used = tuple(d for row in scheduled(cluster, batch=batch) for d in row)
    order = shuffled(used, seed=seed)
    return tuple(order[i : i + NUM_STAGES] for i in range(0, len(order), NUM_STAGES))


def shuffled_hosts(cluster: Cluster, rows: Placement, *, seed: int) -> Placement:
    """Return the placement with the hosts of all regions in a random order.

    The devices of a host stay side by side, and the first host stays first, as the first device
    does where single devices are shuffled.

    >>> from jaxpipe import topo
    >>> hosts = topo.load("homogeneous:hosts=4,devices=2,delay_ms=1,bandwidth_gbps=1")
    >>> shuffled_hosts(hosts, ((0, 1, 2, 3), (4, 5, 6, 7)), seed=3)
    ((0, 1, 4, 5), (2, 3, 6, 7))
    """
    members: dict[str, list[int]] = {}
    for device in (device for row in rows for device in row):
        members.setdefault(cluster.devices[device].host, []).append(device)
    hosts = list(members.values())
    order = [
        device
        for number in shuffled(tuple(range(len(hosts))), seed=seed)
        for device in hosts[number]
    ]
    size = len(rows[0])
    return tuple(tuple(order[i : i + size]) for i in range(0, len(order), size))


def dtfm_step(
    cluster: Cluster,
    placement: Placement,
    *,
    workload: Workload,
    constants: Constants,
    all_reduce: Algorithm = sequential_chain,
) -> StepModel:
    """Return a step of DT-FM with this placement and all-reduce over the replicas."""
    num_stages, num_replicas = len(placement[0]), len(placement)
    cut = even_partition(num_layers=workload.num_layers, num_stages=num_stages)
    speeds = constants.speeds(workload.precision)
    seconds = durations(cluster, placement, cut, workload=workload, speeds=speeds)
    collectives = stage_all_reduces(
        cut, num_replicas=num_replicas, workload=workload, all_reduce=all_reduce
    )
    return StepModel(
        cluster=cluster,
        placement=placement,
        phases=dtfm_phases(
            num_stages=num_stages,
            num_replicas=num_replicas,
            num_microbatches=workload.batch // num_replicas,
        ),
        forward_s=seconds.forward_s,
        backward_s=seconds.backward_s,
        activation_bytes=workload.activation_bytes,
        collectives={Bucket.STAGE: collectives},
        messages=constants.network.messages(),
        gradients=constants.network.gradients(),
        barrier=BarrierKind.RENDEZVOUS,
        nic_efficiency=constants.network.nic_efficiency,
    )


def dtfm_phases(*, num_stages: int, num_replicas: int, num_microbatches: int) -> tuple[Phase, ...]:
    """Return the forwards and the backwards of each 64 microbatches, and the end of the step.

    A barrier comes first and another one last: the published times lie between them.
    """
    sizes = [
        min(_STEP_MICROBATCHES, num_microbatches - done)
        for done in range(0, num_microbatches, _STEP_MICROBATCHES)
    ]
    lowered = {
        size: lower(
            gpipe(num_stages=num_stages, num_microbatches=size),
            tied=False,
            num_replicas=num_replicas,
        )
        for size in set(sizes)
    }
    passes = [
        phase
        for size in sizes
        for phase in (
            Phase(schedule=_where(lowered[size], _is_forward), meets=True),
            Phase(schedule=_where(lowered[size], _is_backward)),
        )
    ]
    # Reductions and updates are the same for every number of microbatches.
    nothing = Phase(schedule=((),) * num_stages, meets=True)
    return (nothing, *passes, Phase(schedule=_where(lowered[sizes[0]], _is_end), meets=True))


def _where(schedule: Schedule, holds: Callable[[Instruction], bool]) -> Schedule:
    return tuple(
        tuple(instruction for instruction in program if holds(instruction)) for program in schedule
    )


def _is_end(instruction: Instruction) -> bool:
    return instruction.op in (Op.REDUCE, Op.UPDATE)


def _is_forward(instruction: Instruction) -> bool:
    if instruction.peer is None:
        return instruction.op is Op.FORWARD
    # Activations go to later stages: they are sent to one, or received from an earlier one.
    return (instruction.peer > instruction.stage) == (instruction.op is Op.SEND)


def _is_backward(instruction: Instruction) -> bool:
    return not _is_end(instruction) and not _is_forward(instruction)
