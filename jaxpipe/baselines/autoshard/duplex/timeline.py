"""The time of a step that is not divided into halves: two streams, and what of them overlaps.

Activations are awaited. Gradients are all-reduced after the backward, or in buckets under it; the
network runs one collective at a time::

    after the backward   compute ▓▓▓▓▓▓▓▓▓▓▓▓▓▓               buckets   compute ▓▓▓▓▓▓▓▓▓▓▓▓▓▓
                         network               ▓▓▓▓▓▓▓▓                 network       ▓▓▓  ▓▓▓  ▓▓
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf

from jaxpipe.baselines.autoshard.duplex.decision import OperatorDecision, Strategy
from jaxpipe.baselines.autoshard.duplex.form import FULL
from jaxpipe.baselines.autoshard.duplex.operator_cost import BACKWARD, CostModel, OperatorCost
from jaxpipe.baselines.autoshard.duplex.stage_seconds import costs_of
from jaxpipe.collective.kinds import CollectiveKind


@dataclass(frozen=True, slots=True, kw_only=True)
class Overlap:
    """What runs under compute.

    Args:
        bucket_bytes: gradients of a bucket, all-reduced as soon as they are there; infinite if one
            all-reduce follows the backward [bytes].
        prefetches: whether sharded parameters are gathered ahead of their reader, and their
            gradients scattered under the rest of the backward.
        sums_gradients: whether gradients of replicated parameters are all-reduced at all.
    """

    bucket_bytes: float = inf
    prefetches: bool = False
    sums_gradients: bool = True


@dataclass(slots=True)
class _Clocks:
    """When each stream is free [s]."""

    compute: float = 0.0
    network: float = 0.0

    def awaited(self, seconds: float) -> None:
        """Communicate, and let compute wait for it."""
        if seconds:
            self.compute = self.network = max(self.compute, self.network) + seconds

    def sent(self, seconds: float) -> None:
        """Communicate what compute has made, while it continues."""
        if seconds:
            self.network = max(self.compute, self.network) + seconds

    def fetched(self, seconds: float, *, ahead: bool) -> None:
        """Communicate what compute needs next."""
        if not ahead:
            self.awaited(seconds)
        elif seconds:
            self.network += seconds
            self.compute = max(self.compute, self.network)


def whole_step_s(model: CostModel, strategy: Strategy, overlap: Overlap) -> float:
    """Return the seconds of a step of the whole batch.

    Sharded parameters are gathered for the forward, and again for the backward (ZeRO-3).
    """
    assert model.halves == 1, model.halves
    costs = costs_of(model, strategy)
    clocks = _Clocks()
    for cost in costs:
        clocks.fetched(cost.gather_s, ahead=overlap.prefetches)
        clocks.awaited(cost.forward_s)
        clocks.compute += cost.compute_s
    _backward(model, clocks, list(zip(costs, strategy, strict=True)), overlap)
    return max(clocks.compute, clocks.network) + sum(
        operator_cost.update_s for operator_cost in costs
    )


def _backward(
    model: CostModel,
    clocks: _Clocks,
    steps: Sequence[tuple[OperatorCost, OperatorDecision]],
    overlap: Overlap,
) -> None:
    waiting = 0.0
    for cost, decision in reversed(steps):
        clocks.fetched(cost.gather_s, ahead=overlap.prefetches)
        clocks.compute += BACKWARD * cost.compute_s
        clocks.awaited(cost.backward_s)
        if cost.gather_s:
            send = clocks.sent if overlap.prefetches else clocks.awaited
            send(cost.sync_s)
            continue
        if overlap.sums_gradients:
            waiting += replicated_bytes(model, [decision])
        if waiting >= overlap.bucket_bytes:
            clocks.sent(model.profile.seconds(CollectiveKind.ALL_REDUCE, waiting))
            waiting = 0.0
    if waiting:
        clocks.sent(model.profile.seconds(CollectiveKind.ALL_REDUCE, waiting))


def replicated_bytes(model: CostModel, strategy: Strategy) -> float:
    """Return the bytes of the parameters that each device stores as a whole."""
    return sum(
        model.graph.num_bytes(placement.labels)
        for decision in strategy
        for placement in decision.placements
        if placement.stored == FULL
    )
