"""The time of a step in stages, where the collectives of one half hide behind the other's compute.

The two halves, a and b, run the same stages in turn. What stands in one column runs at the same
time, and the next column begins when both are done::

    forward    comm 1a │ comp 1a │ comp 1b │ comp 2a │ comp 2b
                       │ comm 1b │ comm 2a │ comm 2b │           the backward is its mirror image

So that with L stages, of which comp 0 takes no time,

    forward    sum of max(comp i-1, gather i + comm i) + max(comp i, comm i), and comp L
    backward   sum of max(comp i-1, comm i + sync i)   + max(comp i, comm i), and comp L

where `gather` and `sync` are collectives of parameters and of gradients, once for both halves.

Source: Zhang et al., "HiDup", SoCC 2022, equations 4 and 5. The published code charges the backward
without overlap, which `overlaps_backward` = false does, and the collectives of parameters to both
halves.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from jaxpipe.baselines.autoshard.duplex.decision import Strategy
from jaxpipe.baselines.autoshard.duplex.operator_cost import BACKWARD, CostModel, OperatorCost


@dataclass(frozen=True, slots=True, kw_only=True)
class StageSeconds:
    """The seconds of one stage of one half; `gather_s` and `sync_s` are once for both."""

    compute_s: float
    forward_s: float = 0.0
    backward_s: float = 0.0
    gather_s: float = 0.0
    sync_s: float = 0.0


def duplex_s(stages: Sequence[StageSeconds], *, overlaps_backward: bool = True) -> float:
    """Return the seconds of a forward and a backward of both halves.

    >>> alone = StageSeconds(compute_s=1.0)
    >>> duplex_s([alone, StageSeconds(compute_s=1.0, forward_s=1.0, backward_s=2.0)])
    12.0
    >>> duplex_s([alone, StageSeconds(compute_s=1.0, forward_s=1.5)])
    13.0
    """
    total, before = 0.0, 0.0
    for stage in stages:
        compute = stage.compute_s
        total += max(before, stage.gather_s + stage.forward_s) + max(compute, stage.forward_s)
        before = compute
    return total + before + _backward_s(stages, overlaps=overlaps_backward)


def _backward_s(stages: Sequence[StageSeconds], *, overlaps: bool) -> float:
    total, before = 0.0, 0.0
    for stage in stages:
        compute, moved = BACKWARD * stage.compute_s, stage.backward_s
        if overlaps:
            total += max(before, moved + stage.sync_s) + max(compute, moved)
            before = compute
        else:
            total += 2 * (compute + moved) + stage.sync_s
    return total + before


def stages(costs: Sequence[OperatorCost], strategy: Strategy) -> list[StageSeconds]:
    """Return the stages of a strategy, summed over their operators."""
    groups: list[list[OperatorCost]] = []
    for cost, decision in zip(costs, strategy, strict=True):
        if decision.starts_stage or not groups:
            groups.append([])
        groups[-1].append(cost)
    return [
        StageSeconds(
            compute_s=sum(cost.compute_s for cost in group),
            forward_s=sum(cost.forward_s for cost in group),
            backward_s=sum(cost.backward_s for cost in group),
            gather_s=sum(cost.gather_s for cost in group),
            sync_s=sum(cost.sync_s for cost in group),
        )
        for group in groups
    ]


def costs_of(model: CostModel, strategy: Strategy) -> list[OperatorCost]:
    """Return the cost of each decision."""
    return [
        model.of(operator, decision)
        for operator, decision in zip(model.graph.operators, strategy, strict=True)
    ]


def step_s(model: CostModel, strategy: Strategy) -> float:
    """Return the seconds of a step in two halves, with the update of the parameters."""
    costs = costs_of(model, strategy)
    steps = stages(costs, strategy)
    passes_s = duplex_s(steps, overlaps_backward=model.overlaps_backward)
    return passes_s + sum(cost.update_s for cost in costs)


def memory_bytes(model: CostModel, strategy: Strategy) -> float:
    """Return the bytes that a device needs: state of parameters, and outputs of operators."""
    return sum(cost.memory_bytes for cost in costs_of(model, strategy))
