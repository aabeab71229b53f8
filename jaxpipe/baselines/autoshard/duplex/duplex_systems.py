"""Published systems for mixtures of experts, as strategies under one cost model.

============ =================== ================ ==================== ============================
system       experts             routing group    gradients            overlaps
============ =================== ================ ==================== ============================
ddp          replicated          sequence         buckets of 25 MiB    gradients under the backward
horovod      replicated          sequence         buckets of 64 MiB    gradients under the backward
zero3        replicated, sharded sequence         reduce-scatter       parameters and gradients
gshard       split               sequence         one all-reduce       nothing
deepspeed-moe split              device           one all-reduce       nothing
fastmoe      split               no capacity      one all-reduce       nothing
hidup        searched            sequence         searched             halves, in the forward
duplex       searched            sequence         searched             halves, in both directions
============ =================== ================ ==================== ============================
"""

from dataclasses import dataclass, field, replace

import numpy as np

from jaxpipe.baselines.autoshard.duplex.by_label import split_by_label
from jaxpipe.baselines.autoshard.duplex.collective_profile import CollectiveProfile
from jaxpipe.baselines.autoshard.duplex.decision import OperatorDecision, Strategy
from jaxpipe.baselines.autoshard.duplex.duplex_search import search
from jaxpipe.baselines.autoshard.duplex.labelled_graph import LabelledGraph, LabelledOperator
from jaxpipe.baselines.autoshard.duplex.operator_cost import CostModel, DeviceSpeed
from jaxpipe.baselines.autoshard.duplex.routing_load import RoutingGroup, RoutingLoad
from jaxpipe.baselines.autoshard.duplex.timeline import Overlap, replicated_bytes, whole_step_s
from jaxpipe.baselines.autoshard.duplex.transformer_graph import TransformerSizes, transformer_graph
from jaxpipe.baselines.systems import System
from jaxpipe.collective.kinds import CollectiveKind


@dataclass(frozen=True, slots=True, kw_only=True)
class _Rule:
    group: RoutingGroup = RoutingGroup.SEQUENCE
    splits_experts: bool = False
    shards_parameters: bool = False
    overlap: Overlap = field(default_factory=Overlap)
    num_counts: int = 0
    """Exchanges of the sizes of ragged messages, for each mixture."""
    groups_by_expert: bool = False
    """Whether an exchange is a group of messages for each local expert, one after the other."""
    copied_bytes: float = 0.0
    """Read and written for each replicated parameter, to fuse its gradient with others."""


_RULES = {
    System.DDP: _Rule(overlap=Overlap(bucket_bytes=25 * 2**20)),
    System.HOROVOD: _Rule(overlap=Overlap(bucket_bytes=64 * 2**20), copied_bytes=16),
    System.ZERO3: _Rule(shards_parameters=True, overlap=Overlap(prefetches=True)),
    System.GSHARD: _Rule(splits_experts=True),
    System.DEEPSPEED_MOE: _Rule(splits_experts=True, group=RoutingGroup.DEVICE),
    System.FASTMOE: _Rule(
        splits_experts=True, group=RoutingGroup.NONE, num_counts=1, groups_by_expert=True
    ),
}


_NUM_EXCHANGES = 4
"""Of a mixture in a step: tokens go to the experts and back, as do their gradients."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DuplexWorkload:
    """A model and a batch on devices.

    Args:
        sizes: of the model; `experts` is replaced by what each system's routing makes of `load`.
        load: what is routed.
        device: its speed in products of large batches.
        profile: the speed of collectives.
        throughput: batches of a device, ascending, with the part of the speed that they reach.
        hosts: among which devices are divided equally. Messages of tokens without a capacity take
            as long as those of the fullest host.
        group_s: what a group of messages between hosts takes in addition to its bytes, of systems
            that send one for each local expert [s].
        unsummed: systems that leave out the sum of gradients, as a benchmark may by mistake.
    """

    sizes: TransformerSizes
    load: RoutingLoad
    device: DeviceSpeed
    profile: CollectiveProfile
    throughput: tuple[tuple[float, float], ...] = ((1.0, 1.0),)
    hosts: int = 1
    group_s: float = 0.0
    unsummed: frozenset[System] = frozenset()

    def model(
        self, group: RoutingGroup, *, halves: int, overlaps_backward: bool = True
    ) -> CostModel:
        """Return the cost model under a routing group."""
        sizes = replace(self.sizes, experts=self.load.sizes(group))
        batch = self.load.sequences * self.profile.devices
        graph = transformer_graph(sizes, batch=batch)
        batches, parts = zip(*self.throughput, strict=True)
        reached = float(np.interp(self.load.sequences, batches, parts))
        profile = replace(self.profile, fullest_host=self.fullest_host(group))
        return CostModel(
            graph=graph,
            device=replace(self.device, flops_per_s=reached * self.device.flops_per_s),
            profile=profile,
            halves=halves,
            overlaps_backward=overlaps_backward,
        )

    def fullest_host(self, group: RoutingGroup) -> float:
        """Return the messages of the fullest host under a routing group, over the mean."""
        return self.load.fullest(self.hosts) if group is RoutingGroup.NONE else 1.0

    @property
    def local_experts(self) -> float:
        """The experts of a layer on each device."""
        return self.load.num_experts / self.load.num_devices


def strategy_of(
    system: System, graph: LabelledGraph, *, num_devices: int
) -> tuple[OperatorDecision, ...]:
    """Return the strategy of a system that does not search.

    Raises:
        PlanError: experts, or the batch, do not divide over the devices.
    """
    rule = _RULES[system]
    return split_by_label(
        graph,
        lambda operator: _label_of(operator, rule),
        num_devices=num_devices,
        shards_parameters=rule.shards_parameters,
    )


def bucket_bytes(system: System) -> float:
    """Return the size of the buckets of gradients; infinite if one all-reduce ends the step."""
    return _RULES[system].overlap.bucket_bytes


def sums_gradients(system: System, workload: DuplexWorkload) -> bool:
    """Return whether a system sums the gradients of what each device stores as a whole."""
    return system not in workload.unsummed


def fusing_s(
    system: System, model: CostModel, strategy: Strategy, *, memory_bytes_per_s: float
) -> float:
    """Return the seconds of a step in which gradients are copied to fuse them."""
    elements = replicated_bytes(model, strategy) / model.graph.bytes_per_element
    return elements * _RULES[system].copied_bytes / memory_bytes_per_s


def groups_s(system: System, graph: LabelledGraph, workload: DuplexWorkload) -> float:
    """Return the seconds that groups of messages between hosts take in addition to their bytes."""
    rule = _RULES[system]
    if not rule.groups_by_expert or workload.hosts == 1:
        return 0.0
    num_groups = _NUM_EXCHANGES * _num_mixtures(graph, rule) * workload.local_experts
    return num_groups * workload.group_s


def _num_mixtures(graph: LabelledGraph, rule: _Rule) -> float:
    """Return the number of mixtures whose experts are split: each has two such operators."""
    return sum(_label_of(operator, rule) == "e" for operator in graph.operators) / 2


def _label_of(operator: LabelledOperator, rule: _Rule) -> str:
    is_expert = "e" in operator.operands[0] and "e" in operator.result
    return "e" if rule.splits_experts and is_expert else "b"


def predicted_step_s(system: System, workload: DuplexWorkload) -> float:
    """Return the predicted seconds of a step of a system."""
    if system in (System.HIDUP, System.DUPLEX):
        both = system is System.DUPLEX
        return search(
            workload.model(RoutingGroup.SEQUENCE, halves=2, overlaps_backward=both)
        ).seconds
    rule = _RULES[system]
    model = workload.model(rule.group, halves=1)
    strategy = strategy_of(system, model.graph, num_devices=workload.profile.devices)
    mixtures = _num_mixtures(model.graph, rule)
    latency_s = workload.profile.latency_of(CollectiveKind.ALL_TO_ALL)
    others_s = rule.num_counts * mixtures * latency_s
    others_s += groups_s(system, model.graph, workload)
    others_s += fusing_s(
        system, model, strategy, memory_bytes_per_s=workload.device.memory_bytes_per_s
    )
    overlap = replace(rule.overlap, sums_gradients=sums_gradients(system, workload))
    return whole_step_s(model, strategy, overlap) + others_s
