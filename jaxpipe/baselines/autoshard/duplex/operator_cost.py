"""The cost of decisions: compute, collectives, the update of parameters, and memory.

::

    compute      FLOP / flops_per_s + traffic / memory_bytes_per_s + launch, of a device's share
    collective   latency + bytes of the whole tensor / speed of its kind
    update       traffic of the optimizer / memory_bytes_per_s, of a device's parameters
    memory       parameters, gradients and moments as stored, and the output of each operator

A backward takes twice its forward. Collectives of activations are of one half of the batch; those
of parameters run once for both halves.
"""

from dataclasses import dataclass
from math import inf

from jaxpipe.baselines.autoshard.duplex.collective_profile import CollectiveProfile
from jaxpipe.baselines.autoshard.duplex.decision import Conversion, OperatorDecision, Placement
from jaxpipe.baselines.autoshard.duplex.form import FULL, backward_conversion, conversion
from jaxpipe.baselines.autoshard.duplex.labelled_graph import LabelledGraph, LabelledOperator
from jaxpipe.baselines.autoshard.duplex.signature import Signature
from jaxpipe.collective.kinds import CollectiveKind
from jaxpipe.errors import PlanError

BACKWARD = 2.0
"""Products of a backward for each of the forward."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceSpeed:
    """The speed of one device.

    Args:
        flops_per_s: speed of products [FLOP/s].
        memory_bytes_per_s: speed of everything that is not a product [bytes/s].
        launch_s: time of an operator of no work, in a forward [s].
        update_bytes: traffic of the optimizer for each parameter [bytes].
        state_bytes: of each parameter its value, gradient and moments [bytes].

    Raises:
        PlanError: a speed is not above 0, or something is negative.
    """

    flops_per_s: float
    memory_bytes_per_s: float = inf
    launch_s: float = 0.0
    update_bytes: float = 0.0
    state_bytes: float = 16.0  # float32: parameter, gradient, two moments

    def __post_init__(self) -> None:
        for name in ("flops_per_s", "memory_bytes_per_s"):
            if not getattr(self, name) > 0:
                raise PlanError(f"`{name}` must be above 0, is {getattr(self, name)}")
        for name in ("launch_s", "update_bytes", "state_bytes"):
            if not 0 <= getattr(self, name) < inf:
                raise PlanError(f"`{name}` must be at least 0, is {getattr(self, name)}")


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorCost:
    """What one decision costs.

    Args:
        compute_s: forward of one half [s].
        forward_s: collectives of activations in the forward of one half [s].
        backward_s: the same in its backward [s].
        gather_s: collectives of parameters, once before the forward of the first half [s].
        sync_s: collectives of gradients, once after the backward of the last half [s].
        update_s: the optimizer [s].
        memory_bytes: what stays in the memory of a device until the backward, or for good.
    """

    compute_s: float
    forward_s: float = 0.0
    backward_s: float = 0.0
    gather_s: float = 0.0
    sync_s: float = 0.0
    update_s: float = 0.0
    memory_bytes: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class CostModel:
    """The costs of a graph on devices.

    Args:
        graph: the step.
        device: the speed of one device.
        profile: the speed of collectives.
        halves: into which the batch is divided: 2 for duplex, 1 without.
        overlaps_backward: whether collectives of the backward hide behind compute as well; the
            published cost function of HiDup has none of it.
    """

    graph: LabelledGraph
    device: DeviceSpeed
    profile: CollectiveProfile
    halves: int = 2
    overlaps_backward: bool = True

    def of(self, operator: LabelledOperator, decision: OperatorDecision) -> OperatorCost:
        """Return the cost of a decision."""
        moved = [self.conversion_s(conversion) for conversion in decision.conversions]
        stored = [self.placement_s(placement) for placement in decision.placements]
        return OperatorCost(
            compute_s=self.compute_s(operator, decision.signature),
            forward_s=sum(seconds[0] for seconds in moved),
            backward_s=sum(seconds[1] for seconds in moved),
            gather_s=sum(seconds[0] for seconds in stored),
            sync_s=sum(seconds[1] for seconds in stored),
            update_s=sum(self.update_s(placement) for placement in decision.placements),
            memory_bytes=self.memory_bytes(operator, decision),
        )

    def compute_s(self, operator: LabelledOperator, signature: Signature) -> float:
        """Return the seconds of a forward of one half."""
        work_s = operator.flops / self.device.flops_per_s
        work_s += operator.traffic_bytes / self.device.memory_bytes_per_s
        share = self.profile.devices if signature.is_split else 1
        return work_s / share / self.halves + self.device.launch_s

    def conversion_s(self, converted: Conversion) -> tuple[float, float]:
        """Return the seconds in a forward and in a backward of one half."""
        num_bytes = self.graph.num_bytes(converted.labels) / self.halves
        forward = conversion(converted.source, converted.target)
        backward = backward_conversion(converted.source, converted.target)
        return self.profile.seconds(forward, num_bytes), self.profile.seconds(backward, num_bytes)

    def placement_s(self, placement: Placement) -> tuple[float, float]:
        """Return the seconds to gather a parameter and to sum its gradient."""
        num_bytes = self.graph.num_bytes(placement.labels)
        if placement.used != FULL:
            return 0.0, 0.0
        if placement.stored == FULL:
            return 0.0, self.profile.seconds(CollectiveKind.ALL_REDUCE, num_bytes)
        kinds = CollectiveKind.ALL_GATHER, CollectiveKind.REDUCE_SCATTER
        gather, scatter = (self.profile.seconds(kind, num_bytes) for kind in kinds)
        return gather, scatter

    def update_s(self, placement: Placement) -> float:
        """Return the seconds of the optimizer for a parameter."""
        return self._stored(placement) * self.device.update_bytes / self.device.memory_bytes_per_s

    def memory_bytes(self, operator: LabelledOperator, decision: OperatorDecision) -> float:
        """Return the bytes of the operator's parameters and of its output, both halves."""
        output = self.graph.num_bytes(operator.result)
        if decision.signature.output.dim >= 0:
            output /= self.profile.devices
        stored = sum(self._stored(placement) for placement in decision.placements)
        return output + stored * self.device.state_bytes

    def _stored(self, placement: Placement) -> float:
        """Return the elements of a parameter that a device stores."""
        elements = self.graph.num_bytes(placement.labels) / self.graph.bytes_per_element
        return elements if placement.stored == FULL else elements / self.profile.devices
