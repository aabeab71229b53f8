"""Classes of dims: the dims of a step's arrays that its operators split together.

::

    x (batch, dim) ─ product ─ y (batch, hidden)        {x.0, y.0}  {x.1, up.0}  {y.1, up.1}
    up (dim, hidden) ───┘

A label of an einsum graph is such a class; a parameter or the batch, whose dims have known labels,
tells which.
"""

from dataclasses import dataclass, field

from jaxpipe.baselines.autoshard.graph.rule import Rule
from jaxpipe.baselines.autoshard.spmd.program import OperatorProgram, ProgramOperator

Dim = tuple[int, int]
"""The number of an array, and one of its dims."""


@dataclass(frozen=True, slots=True)
class DimClasses:
    """The classes of a program; each is named by one of its dims."""

    _parent: dict[Dim, Dim] = field(default_factory=dict)

    @classmethod
    def of(cls, program: OperatorProgram) -> "DimClasses":
        """Return the classes of a program's dims.

        >>> import jax
        >>> from jaxpipe.baselines.autoshard.spmd import trace_program
        >>> x, up = (jax.ShapeDtypeStruct(shape, "float32") for shape in ((2, 3), (3, 4)))
        >>> program = trace_program(lambda x, up: x @ up, x, up)
        >>> classes, (x, up), (y,) = DimClasses.of(program), program.arguments, program.results
        >>> classes.name((x, 0)) == classes.name((y, 0)), classes.name((x, 1)) == (y, 1)
        (True, False)
        """
        classes = cls()
        for operator in program.operators:
            for dims in factor_dims(operator).values():
                for dim in dims[1:]:
                    classes._join(dims[0], dim)
        return classes

    def name(self, dim: Dim) -> Dim:
        """Return the dim that stands for the class of a dim."""
        while dim in self._parent:
            above = self._parent[dim]
            # Halved on the way, so that paths stay short: a step has ten thousands of dims.
            self._parent[dim] = self._parent.get(above, above)
            dim = above
        return dim

    def _join(self, first: Dim, second: Dim) -> None:
        roots = self.name(first), self.name(second)
        if roots[0] != roots[1]:
            self._parent[roots[1]] = roots[0]


def factor_dims(operator: ProgramOperator) -> dict[int, list[Dim]]:
    """Return the dims of each factor of an operator, over its operands and results."""
    rule: Rule = operator.rule
    dims_of: dict[int, list[Dim]] = {}
    arrays = zip(
        (*operator.inputs, *operator.outputs), (*rule.operands, *rule.results), strict=True
    )
    for number, dims in arrays:
        for dim, factor in enumerate(dims):
            if factor is not None:
                dims_of.setdefault(factor, []).append((number, dim))
    return dims_of
