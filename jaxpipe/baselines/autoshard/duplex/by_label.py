"""Strategies by rule: one label is split in each operator, as people write them by hand."""

from collections.abc import Callable

from jaxpipe.baselines.autoshard.duplex.decision import (
    OperatorDecision,
    conversions,
    held_after,
    placements,
)
from jaxpipe.baselines.autoshard.duplex.form import FULL
from jaxpipe.baselines.autoshard.duplex.labelled_graph import LabelledGraph, LabelledOperator
from jaxpipe.baselines.autoshard.duplex.signature import Signature, signatures
from jaxpipe.errors import PlanError


def split_by_label(
    graph: LabelledGraph,
    label_of: Callable[[LabelledOperator], str],
    *,
    num_devices: int,
    shards_parameters: bool,
) -> tuple[OperatorDecision, ...]:
    """Return the strategy that splits a label of each operator; one stage.

    With `shards_parameters` those that an operator reads as a whole are stored in shards (ZeRO-3).

    Raises:
        PlanError: an operator has no signature that splits the label.
    """
    forms = {name: frozenset({FULL}) for name in graph.inputs}
    decisions: list[OperatorDecision] = []
    for operator, last_read in zip(graph.operators, graph.last_reads(), strict=True):
        signature = _signature(operator, label_of(operator), graph, num_devices)
        # Of one held form there is one conversion at most.
        moved = next(conversions(operator, signature, graph, forms))
        stored = placements(operator, signature, graph, num_devices=num_devices)
        decision = OperatorDecision(signature, moved, stored[-1 if shards_parameters else 0])
        forms = held_after(operator, decision, forms, last_read=last_read)
        decisions.append(decision)
    return tuple(decisions)


def _signature(
    operator: LabelledOperator, label: str, graph: LabelledGraph, num_devices: int
) -> Signature:
    for signature in signatures(operator, graph.sizes, num_devices=num_devices):
        if signature.label == label:
            return signature
    raise PlanError(
        f"{operator.name} cannot split {label!r}, of size {graph.sizes.get(label)}, over "
        f"{num_devices} devices; make it a multiple"
    )
