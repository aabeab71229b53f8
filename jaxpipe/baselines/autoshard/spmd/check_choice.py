"""Check a fixed choice against its operator: a strategy from a file may be for another step.

A choice that does not fit would fail deep inside JAX, or compute something else::

    dot_general (8, 4) x (4, 2) -> (8, 2)

    RS1,S1R->RR +1     fits: the summed dim is split alike, and its partial sums are reduced
    RS1,S1R->RR        partial sums remain
    RS1,RR->RR +1      a column of the one meets another row of the other
    RS1,S1R->RR +1>7   the result has no dim 7
"""

from collections.abc import Iterator, Mapping

from jaxpipe.baselines.autoshard.graph.rule import Dims
from jaxpipe.baselines.autoshard.spmd.program import OperatorProgram, ProgramOperator
from jaxpipe.baselines.autoshard.strategy import Axes, Axis, MeshShape, OperatorChoice, Sharding
from jaxpipe.errors import PlanError


def check_choices(
    program: OperatorProgram, mesh: MeshShape, given: Mapping[int, OperatorChoice]
) -> None:
    """Check the choices that a strategy gives for operators, by their indices.

    Raises:
        PlanError: a choice is for no operator of the program, or does not fit its operator.
    """
    operators = {
        operator.index: operator for operator in program.operators if operator.index is not None
    }
    for index, choice in given.items():
        if index not in operators:
            raise PlanError(
                f"`operators.{index}` is not in this step, which has {len(operators)} operators, "
                "from 0: the strategy is for another step; search again"
            )
        problem = next(_problems(operators[index], choice, program, mesh), None)
        if problem is not None:
            raise PlanError(
                f"`operators.{index}` cannot be {str(choice)!r}: "
                f"{_form(operators[index], program)}, and {problem}; the strategy is for another "
                "step; search again"
            )


def _problems(
    operator: ProgramOperator, choice: OperatorChoice, program: OperatorProgram, mesh: MeshShape
) -> Iterator[str]:
    """Yield what is wrong with a choice; each check relies on those before."""
    numbers = (*operator.inputs, *operator.outputs)
    given = (len(choice.operands), len(choice.results))
    if given != (len(operator.inputs), len(operator.outputs)):
        yield f"the choice has {given[0]} operands and {given[1]} results"
        return
    for number, sharding in zip(numbers, (*choice.operands, *choice.results), strict=True):
        shape = program.arrays[number].shape
        if not sharding.fits(shape, mesh):
            yield f"{sharding} does not divide {shape} on {mesh.dp} x {mesh.op} devices"
            return
    before = _before_scatters(choice)
    if before is None:
        yield "a reduce-scatter ends in a dim of the only result, as the innermost of its axes"
        return
    yield from _split_problems(operator, choice, before)


def _split_problems(
    operator: ProgramOperator, choice: OperatorChoice, before: tuple[Sharding, ...]
) -> Iterator[str]:
    """Yield where dims that belong together are split differently, or sums are not reduced."""
    rule = operator.rule
    split: dict[int, Axes] = {}
    arrays = zip((*rule.operands, *rule.results), (*choice.operands, *before), strict=True)
    for dims, sharding in arrays:
        for factor, axes in _by_factor(dims, sharding):
            if factor is None and axes:
                yield f"devices must have a dim whole that {sharding} splits"
            if factor is not None and split.setdefault(factor, axes) != axes:
                yield f"{sharding} splits a dim otherwise than another array that has it"
    summed = sorted(axis for factor in rule.summed for axis in split.get(factor, ()))
    ended = sorted(axis for partial_sum in choice.partial for axis in partial_sum.axes)
    if summed != ended:
        yield f"its sums are partial along {_named(summed)}, and reduced along {_named(ended)}"


def _by_factor(dims: Dims, sharding: Sharding) -> Iterator[tuple[int | None, Axes]]:
    return zip(dims, sharding.dims, strict=True)


def _before_scatters(choice: OperatorChoice) -> tuple[Sharding, ...] | None:
    """Return the results before their partial sums are reduced; None if that cannot be."""
    results = list(choice.results)
    # From the last: a later scatter splits what an earlier one has left.
    for end in reversed(choice.partial):
        if end.scatter_dim is None:
            continue
        if len(results) != 1 or end.scatter_dim >= len(results[0].dims):
            return None
        dims = list(results[0].dims)
        scattered = dims[end.scatter_dim]
        remaining = scattered[: len(scattered) - len(end.axes)]
        if (*remaining, *end.axes) != scattered:
            return None
        dims[end.scatter_dim] = remaining
        results[0] = Sharding(tuple(dims))
    return tuple(results)


def _form(operator: ProgramOperator, program: OperatorProgram) -> str:
    def shapes(numbers: tuple[int, ...]) -> str:
        return ", ".join(str(program.arrays[number].shape) for number in numbers)

    return f"{operator.name} is {shapes(operator.inputs)} -> {shapes(operator.outputs)}"


def _named(axes: list[Axis]) -> str:
    return ", ".join(axis.label for axis in axes) or "no axis"
