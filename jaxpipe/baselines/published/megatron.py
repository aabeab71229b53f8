"""Megatron-LM as DT-FM's authors ran it: stages of groups of ranks, 1F1B, tensors split over some.

With T-way tensor parallelism and P stages, rank r is part r % T of a stage; stages are blocks of
consecutive ranks, and replicas lie inside a block::

    P8           ranks 0-7: stage 0 of replicas 0 to 7, ranks 8-15: stage 1, ...
    P4 x T2      ranks 0-1: stage 0 of replica 0, ranks 2-3: of replica 1, ...; 16 ranks to a stage

Each layer all-reduces its activations over the T devices twice in a forward and twice in a
backward, and twice more with recomputation, without overlap. Of the activations that go to another
stage each of the T ranks sends a T-th.

Sends do not block, but a rank posts a receive only when it gets there; the part of a message that
no buffer holds leaves after that. DT-FM posts all receives ahead.

Source: Narayanan et al., "Efficient Large-Scale Language Model Training on GPU Clusters Using
Megatron-LM", SC 2021.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import pairwise

from jaxpipe.baselines.published.compute_times import durations
from jaxpipe.baselines.published.dtfm import along, stage_all_reduces
from jaxpipe.baselines.published.rings import all_gather_s
from jaxpipe.baselines.published.workload import Workload
from jaxpipe.collective import AllReduceKind
from jaxpipe.errors import PlanError
from jaxpipe.network import MessageCosts
from jaxpipe.plan import even_partition
from jaxpipe.schedule import Bucket, Schedule, lower, one_f_one_b
from jaxpipe.simulate.constants import Constants, Speeds
from jaxpipe.simulate.engine.step_model import Phase, StepModel
from jaxpipe.topo import Cluster

_FORWARD_ALL_REDUCES, _BACKWARD_ALL_REDUCES = 2, 2
_NVLINKS = 6
"""Links of a V100; in a group of T, T - 1 of them at least lead to other members."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MegatronLayout:
    """The number of stages, and of devices over which each of them is split."""

    stages: int
    tensor: int


def megatron_step(
    cluster: Cluster,
    order: tuple[int, ...],
    *,
    split: MegatronLayout,
    workload: Workload,
    constants: Constants,
    schedule_of: Callable[..., Schedule] = one_f_one_b,
) -> StepModel:
    """Return a step of Megatron-LM in which rank r runs on device `order[r]`.

    The first of a stage's T devices stands for all: they compute and send the same.

    Raises:
        PlanError: devices, layers or batch do not fit the split.
    """
    groups = _groups(order, split=split, workload=workload)
    num_replicas = len(groups) // split.stages
    placement = tuple(
        tuple(group[0] for group in groups[replica::num_replicas])
        for replica in range(num_replicas)
    )
    cut = even_partition(num_layers=workload.num_layers, num_stages=split.stages)
    speeds = _speeds(cluster, groups, constants.speeds(workload.precision))
    times = durations(cluster, placement, cut, workload=workload, speeds=speeds)
    all_reduce_s = _all_reduce_s(cluster, groups, workload=workload, constants=constants)
    num_microbatches = workload.batch // (num_replicas * workload.microbatch)
    schedule = schedule_of(num_stages=split.stages, num_microbatches=num_microbatches)
    collectives = stage_all_reduces(
        cut, num_replicas=num_replicas, workload=workload, all_reduce=along(AllReduceKind.RING)
    )
    backward = _BACKWARD_ALL_REDUCES + workload.recompute * _FORWARD_ALL_REDUCES
    return StepModel(
        cluster=cluster,
        placement=placement,
        phases=(Phase(schedule=lower(schedule, tied=False, num_replicas=num_replicas)),),
        forward_s=_split(
            times.forward_s, cut, split=split, per_layer_s=_FORWARD_ALL_REDUCES * all_reduce_s
        ),
        backward_s=_split(times.backward_s, cut, split=split, per_layer_s=backward * all_reduce_s),
        activation_bytes=workload.activation_bytes,
        collectives={Bucket.STAGE: collectives},
        messages=_scattered(constants.network.exchanges(), split.tensor),
        gradients=constants.network.gradients(),
        nic_efficiency=constants.network.nic_efficiency,
    )


def _speeds(cluster: Cluster, groups: list[tuple[int, ...]], speeds: Speeds) -> Speeds:
    """Return the speed by the larger part of a stage's traffic: its all-reduces, if it has any."""
    if len(groups[0]) == 1:
        return speeds
    is_local = _are_local(cluster, groups)
    fraction = speeds.local_fraction if is_local else speeds.remote_fraction
    return Speeds(local_fraction=fraction, remote_fraction=fraction)


def _scattered(costs: MessageCosts, num_parts: int) -> MessageCosts:
    """Return the costs of an activation of which as many ranks send a part each, all at once."""
    return replace(
        costs,
        overhead_s=costs.overhead_s / num_parts,
        flow_bytes_per_s=costs.flow_bytes_per_s * num_parts,
        eager_bytes=costs.eager_bytes * num_parts,
    )


def _all_reduce_s(
    cluster: Cluster,
    groups: list[tuple[int, ...]],
    *,
    workload: Workload,
    constants: Constants,
) -> float:
    """Return the seconds of an all-reduce over T devices: a reduce-scatter and an all-gather.

    Inside a host NCCL runs as many rings as links allow, and each round has a latency of its own.
    """
    size = len(groups[0])
    part_bytes = workload.activation_bytes / size
    if size == 1:
        return 0.0
    if not _are_local(cluster, groups):
        nic_efficiency = constants.network.nic_efficiency
        return 2 * all_gather_s(cluster, groups, part_bytes, nic_efficiency=nic_efficiency)
    slowest = min(
        float(cluster.alone_bytes_per_s[pair]) for group in groups for pair in pairwise(group)
    )
    rings = min(size - 1, _NVLINKS)
    round_s = constants.network.ring_round_s + part_bytes / (rings * slowest)
    return 2 * (size - 1) * round_s


def _are_local(cluster: Cluster, groups: list[tuple[int, ...]]) -> bool:
    host_of = cluster.host_of
    return all(len({host_of[device] for device in group}) == 1 for group in groups)


def _groups(
    order: tuple[int, ...], *, split: MegatronLayout, workload: Workload
) -> list[tuple[int, ...]]:
    size = split.stages * split.tensor
    num_replicas, rest = divmod(len(order), size)
    if rest or not num_replicas or workload.batch % (num_replicas * workload.microbatch):
        raise PlanError(
            f"`batch` ({workload.batch}), `microbatch` ({workload.microbatch}) and {len(order)} "
            f"devices must be shared evenly by replicas of {split.stages} stages x {split.tensor} "
            f"devices; take a multiple of {size} devices, and a batch that their replicas divide "
            "into microbatches"
        )
    return [order[i : i + split.tensor] for i in range(0, len(order), split.tensor)]


def _split(
    seconds: tuple[float, ...],
    cut: tuple[int, ...],
    *,
    split: MegatronLayout,
    per_layer_s: float,
) -> tuple[float, ...]:
    return tuple(
        total_s / split.tensor + cut[rank % split.stages] * per_layer_s
        for rank, total_s in enumerate(seconds)
    )
