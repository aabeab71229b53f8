"""A training step as operators on named tensors, each with an einsum equation and its cost.

::

    x [batch seq dim] ──► up "bsd,df->bsf" ──► act "bsf->bsf" ──► down "bsf,fd->bsd" ──► add ──► ...
                              │                                       │
                          parameter                               parameter

Operators stand in the order in which they are computed. The step's result is the loss, a scalar.
The backward is not part of the graph: it reverses the operators, at twice their cost.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from math import prod

from jaxpipe.errors import PlanError


class Linearity(StrEnum):
    """In what an operator is linear, which decides where partial sums may enter."""

    PRODUCT = "product"
    """In each operand: one of them may be partial."""
    SUM = "sum"
    """In all operands together: all may be partial."""
    NONE = "none"
    """In none: no operand may be partial."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LabelledOperator:
    """One operator: what it reads and writes, how its dims relate, and what it costs.

    Args:
        name: where it is in the model, such as "layer3.up".
        equation: an einsum equation; labels that are not in its output are summed over.
        inputs: names of the operands, in the order of the equation.
        output: the name of the result.
        flops: a third of those of a forward and a backward, over all devices [FLOP].
        traffic_bytes: read and written by what is not a product, over all devices [bytes].
        linearity: in what it is linear.
        unsplit: labels along which nothing may be split, such as the classes of a softmax.

    Raises:
        PlanError: the equation does not fit the operands.
    """

    name: str
    equation: str
    inputs: tuple[str, ...]
    output: str
    flops: float = 0.0
    traffic_bytes: float = 0.0
    linearity: Linearity = Linearity.PRODUCT
    unsplit: frozenset[str] = frozenset()

    def __post_init__(self) -> None:
        operands = self.equation.partition("->")[0].split(",")
        if "->" not in self.equation or len(operands) != len(self.inputs):
            raise PlanError(
                f"`equation` must have an arrow and one term for each of the {len(self.inputs)} "
                f"inputs of {self.name}, is {self.equation!r}"
            )

    @property
    def operands(self) -> tuple[str, ...]:
        """The labels of each input."""
        return tuple(self.equation.partition("->")[0].split(","))

    @property
    def result(self) -> str:
        """The labels of the output."""
        return self.equation.partition("->")[2]


@dataclass(frozen=True, slots=True, kw_only=True)
class LabelledGraph:
    """The operators of a step; see the module.

    Args:
        operators: in the order in which they are computed.
        sizes: the length of the dim of each label, over all devices. A mean may be a fraction.
        inputs: tensors that the step is given, split along their first dim.
        parameters: tensors that are trained.
        bytes_per_element: of every tensor.

    Raises:
        PlanError: a tensor is read before it is written, or written twice; a parameter does not
            have exactly one reader; a label has no size.
    """

    operators: tuple[LabelledOperator, ...]
    sizes: Mapping[str, float]
    inputs: frozenset[str]
    parameters: frozenset[str]
    bytes_per_element: int = 4

    def __post_init__(self) -> None:
        known = set(self.inputs | self.parameters)
        for operator in self.operators:
            if unknown := set(operator.inputs) - known:
                raise PlanError(
                    f"{operator.name} reads {sorted(unknown)[0]!r}, which is not written"
                )
            if operator.output in known:
                raise PlanError(f"{operator.name} writes {operator.output!r}, which exists already")
            known.add(operator.output)
            if missing := set(operator.equation) - set(self.sizes) - set(",->"):
                raise PlanError(
                    f"`sizes` has no {sorted(missing)[0]!r}, a label of {operator.name}"
                )
        readers = Counter(name for node in self.operators for name in node.inputs)
        for name in sorted(self.parameters):
            if readers[name] != 1:
                raise PlanError(f"parameter {name!r} must have one reader, has {readers[name]}")

    def num_bytes(self, labels: str) -> float:
        """Return the bytes of a tensor with these labels, over all devices."""
        return prod(self.sizes[label] for label in labels) * self.bytes_per_element

    def last_reads(self) -> list[frozenset[str]]:
        """Return for each operator the tensors that no later one reads."""
        last = {
            name: index for index, operator in enumerate(self.operators) for name in operator.inputs
        }
        names: list[set[str]] = [set() for _ in self.operators]
        for name, index in last.items():
            names[index].add(name)
        return [frozenset(reads) for reads in names]
