"""Signatures of an operator: which forms of its operands give which form of its result.

They follow from the equation. To split label x over the devices, every operand that has x is
sharded along it, and all others are full; the result is sharded if it has x, and partial if x is
summed over::

    bsd,df->bsf    b: S0,F->S0    s: S1,F->S1    f: F,S1->S2    d: S2,S0->P
                   replicated: F,F->F            linear: P,F->P and F,P->P
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from jaxpipe.baselines.autoshard.duplex.form import FULL, PARTIAL, Form, sharded
from jaxpipe.baselines.autoshard.duplex.labelled_graph import LabelledOperator, Linearity


@dataclass(frozen=True, slots=True)
class Signature:
    """The forms of the operands and of the result, and the label that is split, if any.

    Without a label, each device computes the operator for its whole operands.
    """

    inputs: tuple[Form, ...]
    output: Form
    label: str = ""

    @property
    def is_split(self) -> bool:
        """Whether each device computes only its share."""
        return bool(self.label)

    def __str__(self) -> str:
        return f"{','.join(map(str, self.inputs))}->{self.output}"


def signatures(
    operator: LabelledOperator, sizes: Mapping[str, float], *, num_devices: int
) -> tuple[Signature, ...]:
    """Return all signatures of an operator; a label is split where its size is a multiple of n.

    >>> up = LabelledOperator(name="up", equation="bd,df->bf", inputs=("x", "w"), output="y")
    >>> sizes = {"b": 4, "d": 6, "f": 8}
    >>> [str(each) for each in signatures(up, sizes, num_devices=4)]
    ['F,F->F', 'S0,F->S0', 'F,S1->S1', 'P,F->P', 'F,P->P']
    """
    unsharded = Signature((FULL,) * len(operator.inputs), FULL)
    return (unsharded, *_split(operator, sizes, num_devices), *_partial(operator))


def _split(
    operator: LabelledOperator, sizes: Mapping[str, float], num_devices: int
) -> Iterator[Signature]:
    labels = dict.fromkeys("".join(operator.operands))
    for label in labels:
        if label in operator.unsplit or sizes[label] % num_devices:
            continue
        inputs = tuple(
            sharded(labels.index(label)) if label in labels else FULL
            for labels in operator.operands
        )
        at = operator.result.find(label)
        yield Signature(inputs, sharded(at) if at >= 0 else PARTIAL, label)


def _partial(operator: LabelledOperator) -> Iterator[Signature]:
    count = len(operator.inputs)
    if operator.linearity is Linearity.SUM:
        yield Signature((PARTIAL,) * count, PARTIAL)
    elif operator.linearity is Linearity.PRODUCT:
        for number in range(count):
            forms = tuple(PARTIAL if position == number else FULL for position in range(count))
            yield Signature(forms, PARTIAL)
