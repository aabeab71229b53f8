"""What a strategy decides for each operator, and which decisions there are.

A strategy is one decision per operator: its signature, the conversions of activations before it,
how its parameters are stored, and whether a new stage of the two halves begins with it.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product

from jaxpipe.baselines.autoshard.duplex.form import FULL, Form, can_convert, sharded
from jaxpipe.baselines.autoshard.duplex.labelled_graph import LabelledGraph, LabelledOperator
from jaxpipe.baselines.autoshard.duplex.signature import Signature, signatures


@dataclass(frozen=True, slots=True)
class Conversion:
    """A tensor that changes its form before an operator reads it."""

    tensor: str
    labels: str
    source: Form
    target: Form


@dataclass(frozen=True, slots=True)
class Placement:
    """A parameter: the form in which each device stores it, and that which the operator reads.

    F to F is replicated and all-reduces the gradient; S(i) to F all-gathers the parameter and
    reduce-scatters the gradient; S(i) to S(i) needs no collective.
    """

    parameter: str
    labels: str
    stored: Form
    used: Form


@dataclass(frozen=True, slots=True)
class OperatorDecision:
    """What is decided for one operator."""

    signature: Signature
    conversions: tuple[Conversion, ...] = ()
    placements: tuple[Placement, ...] = ()
    starts_stage: bool = False


Strategy = Sequence[OperatorDecision]
"""One decision for each operator of a graph, in its order."""

Held = Mapping[str, frozenset[Form]]
"""The forms in which each live tensor exists."""


def placements(
    operator: LabelledOperator, signature: Signature, graph: LabelledGraph, *, num_devices: int
) -> list[tuple[Placement, ...]]:
    """Return the ways to store an operator's parameters; none if it reads one as partial sums."""
    ways: list[list[Placement]] = []
    for name, labels, used in zip(
        operator.inputs, operator.operands, signature.inputs, strict=True
    ):
        if name not in graph.parameters:
            continue
        ways.append(
            [
                Placement(name, labels, form, used)
                for form in _stored(labels, used, graph, num_devices)
            ]
        )
    return list(product(*ways))


def _stored(labels: str, used: Form, graph: LabelledGraph, num_devices: int) -> list[Form]:
    if used.partial:
        return []
    if used != FULL:
        return [used]
    dims = [dim for dim, label in enumerate(labels) if not graph.sizes[label] % num_devices]
    # All dims are gathered at the same cost: the first stands for them.
    return [FULL, *(sharded(dim) for dim in dims[:1])]


def conversions(
    operator: LabelledOperator, signature: Signature, graph: LabelledGraph, forms: Held
) -> Iterator[tuple[Conversion, ...]]:
    """Yield the sets of conversions after which an operator can run; nothing if there is none.

    A full tensor is sliced where a part of it is read, without a conversion.
    """
    needed: list[list[Conversion]] = []
    for name, labels, form in zip(
        operator.inputs, operator.operands, signature.inputs, strict=True
    ):
        if name in graph.parameters or is_held(forms[name], form):
            continue
        needed.append(
            [
                Conversion(name, labels, source, form)
                for source in sorted(forms[name])
                if can_convert(source, form)
            ]
        )
    yield from product(*needed)


def is_held(forms: frozenset[Form], form: Form) -> bool:
    """Return whether a tensor can be read in a form without a collective."""
    return form in forms or (form.dim >= 0 and FULL in forms)


def held_after(
    operator: LabelledOperator,
    decision: OperatorDecision,
    forms_before: Held,
    *,
    last_read: Collection[str],
) -> dict[str, frozenset[Form]]:
    """Return the forms of the live tensors after an operator, the last reader of `last_read`.

    A converted tensor keeps its old form as well: an operator that follows may read it.
    """
    after = dict(forms_before)
    for conversion in decision.conversions:
        after[conversion.tensor] = after[conversion.tensor] | {conversion.target}
    after[operator.output] = frozenset({decision.signature.output})
    return {name: forms for name, forms in after.items() if name not in last_read}


def options(
    operator: LabelledOperator, graph: LabelledGraph, *, num_devices: int
) -> Iterator[tuple[Signature, tuple[Placement, ...]]]:
    """Yield the signatures of an operator, each with the ways to store its parameters."""
    for signature in signatures(operator, graph.sizes, num_devices=num_devices):
        for stored in placements(operator, signature, graph, num_devices=num_devices):
            yield signature, stored
