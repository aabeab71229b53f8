"""The graph of a step: its arrays and operators, in the order of the jaxpr."""

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod

from jaxpipe.baselines.autoshard.graph.rule import Rule


@dataclass(frozen=True, slots=True, kw_only=True)
class ArrayType:
    """The type of an array: its shape, the name of its dtype, and the bytes of an element."""

    shape: tuple[int, ...]
    dtype: str
    itemsize: int

    @property
    def num_bytes(self) -> int:
        """The bytes of the whole array."""
        return prod(self.shape) * self.itemsize


@dataclass(frozen=True, slots=True, kw_only=True)
class Operator:
    """One equation: arrays in (None: a constant, computed by every device), arrays out.

    `deciding` are the operators whose sharding is searched, products and look-ups; all others
    follow an operand. `remat` marks operators under `jax.checkpoint`, recomputed in the backward.
    """

    index: int
    primitive: str
    operands: tuple[int | None, ...]
    results: tuple[int, ...]
    rule: Rule
    flops: float
    deciding: bool
    remat: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Graph:
    """A step: `arguments` and `results` name arrays by path.

    Where a path is both, the result is stored as the argument is: it is the state of the next step.
    Results that are constants are left out.
    """

    arrays: tuple[ArrayType, ...]
    operators: tuple[Operator, ...]
    arguments: Mapping[str, int]
    results: Mapping[str, int]

    @property
    def flops(self) -> float:
        """The FLOP of all products."""
        return sum(operator.flops for operator in self.operators)
