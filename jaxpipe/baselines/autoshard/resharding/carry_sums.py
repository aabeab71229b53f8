"""Carry partial sums through linear operators, to where they are fewer or smaller.

A choice reduces the partial sums of its operator at once. Where a linear operator alone reads the
result, it may compute with the partial sums instead, and reduce its own result::

    dot +1 ─┐                            dot ─┐
            add ─ transpose        =>         add ─ transpose +1      one all-reduce instead of two
    dot +1 ─┘                            dot ─┘

This happens where the bytes to reduce do not become more. What is computed several times and then
added up, as the gradients of microbatches are, counts as often as it is computed.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from jaxpipe.baselines.autoshard.graph import ArrayType, Rule
from jaxpipe.baselines.autoshard.strategy import MeshShape, OperatorChoice, PartialSum, Sharding

_UNARY: Final = frozenset(
    (
        "broadcast_in_dim",
        "convert_element_type",
        "copy",
        "copy_p",
        "expand_dims",
        "name",
        "neg",
        "reduce_sum",
        "reshape",
        "rev",
        "slice",
        "squeeze",
        "transpose",
    )
)
_JOINT: Final = frozenset(("add", "add_any", "sub"))
"""Linear where all operands are partial sums alike."""
_SCALES: Final = frozenset(("mul", "div"))
"""Linear in one operand, the first, or of a product any."""
_EXTREMES: Final = frozenset(("reduce_max", "reduce_min", "reduce_and", "reduce_or"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Computed:
    """An operator: its primitive, the numbers of what it reads (None: constants) and makes.

    `times` is how often it is computed in a step.
    """

    primitive: str
    inputs: tuple[int | None, ...]
    outputs: tuple[int, ...]
    rule: Rule
    times: int = 1


def carried(
    operators: Sequence[Computed],
    choices: Sequence[OperatorChoice],
    arrays: Mapping[int, ArrayType],
    mesh: MeshShape,
    *,
    needed: frozenset[int],
) -> tuple[OperatorChoice, ...]:
    """Return the choices with partial sums reduced where that takes least.

    Args:
        operators: in an order in which they can be computed.
        choices: one for each.
        arrays: the types, by number.
        mesh: the devices.
        needed: arrays that are read after all operators, and have to be reduced.
    """
    state = _State(
        operators=operators, choices=list(choices), arrays=arrays, mesh=mesh, readers={}, maker={}
    )
    for index, operator in enumerate(operators):
        for number in operator.inputs:
            if number is not None:
                state.readers.setdefault(number, []).append(index)
        for number in operator.outputs:
            state.maker[number] = index
    for number in needed:
        state.readers.setdefault(number, []).append(-1)
    for index in range(len(operators)):
        _carry(state, index)
    return tuple(state.choices)


@dataclass(slots=True, kw_only=True)
class _State:
    operators: Sequence[Computed]
    choices: list[OperatorChoice]
    arrays: Mapping[int, ArrayType]
    mesh: MeshShape
    readers: dict[int, list[int]]
    maker: dict[int, int] = field(default_factory=dict)

    def pending(self, number: int | None, needed: Sharding) -> OperatorChoice | None:
        """Return the choice that makes an array, if its partial sums may wait for its reader."""
        if number is None or number not in self.maker or len(self.readers[number]) != 1:
            return None
        index = self.maker[number]
        choice, operator = self.choices[index], self.operators[index]
        is_sum = bool(choice.partial) and operator.primitive not in _EXTREMES
        if not is_sum or choice.results == (needed,):
            return choice if is_sum else None
        return _scattered(choice, needed)

    def bytes_of(self, index: int, choice: OperatorChoice) -> float:
        """Return the bytes of the partial sums that an operator makes, over a step."""
        operator = self.operators[index]
        array = self.arrays[operator.outputs[0]]
        before = before_sums(choice)
        return operator.times * before.local_bytes(array.shape, array.itemsize, self.mesh)


def _scattered(choice: OperatorChoice, needed: Sharding) -> OperatorChoice | None:
    """Return the choice that scatters what is all-reduced and then sliced; None if it is not."""
    axes, (result,) = choice.partial[0].axes, choice.results
    if choice.partial != (PartialSum(axes=axes),):
        return None
    changed = [dim for dim, axes in enumerate(result.dims) if needed.dims[dim] != axes]
    if len(changed) != 1 or needed.dims[changed[0]] != (*result.dims[changed[0]], *axes):
        return None
    partial = (PartialSum(axes=axes, scatter_dim=changed[0]),)
    return OperatorChoice(operands=choice.operands, results=(needed,), partial=partial)


def before_sums(choice: OperatorChoice) -> Sharding:
    """Return the sharding of the result before its partial sums are reduced."""
    dims = list(choice.results[0].dims)
    for end in reversed(choice.partial):
        if end.scatter_dim is not None:
            dims[end.scatter_dim] = dims[end.scatter_dim][: -len(end.axes)]
    return Sharding(tuple(dims))


def _carry(state: _State, index: int) -> None:
    """Let an operator read partial sums, if it can and that is no dearer."""
    operator, choice = state.operators[index], state.choices[index]
    choices = {
        position: made
        for position, (number, needed) in enumerate(
            zip(operator.inputs, choice.operands, strict=True)
        )
        if (made := state.pending(number, needed)) is not None
    }
    if not choices or choice.partial or not _is_linear(operator, choices, state):
        return
    after = _through(operator, choice, choices)
    if after is None:
        return
    makers = {state.maker[number] for p in choices if (number := operator.inputs[p]) is not None}
    now = sum(state.bytes_of(maker, state.choices[maker]) for maker in makers)
    if _least_ahead(state, index, after) > now:
        return
    for maker in makers:
        made = state.choices[maker]
        state.choices[maker] = OperatorChoice(operands=made.operands, results=(before_sums(made),))
    state.choices[index] = after


def _is_linear(operator: Computed, choices: Mapping[int, OperatorChoice], state: _State) -> bool:
    numbers = (*operator.inputs, *operator.outputs)
    types = [state.arrays[number].dtype for number in numbers if number is not None]
    if operator.primitive in _UNARY:
        # A cast to integers rounds each part.
        return len(operator.inputs) == 1 and all("float" in dtype for dtype in types)
    if operator.primitive in _JOINT:
        return len(choices) == len(operator.inputs)
    if operator.primitive in _SCALES:
        first = {0} if operator.primitive == "div" else {0, 1}
        return len(choices) == 1 and set(choices) <= first and len(set(operator.inputs)) == 2
    return False


def _through(
    operator: Computed, choice: OperatorChoice, choices: Mapping[int, OperatorChoice]
) -> OperatorChoice | None:
    """Return the choice in which an operator reads partial sums and reduces its own result."""
    ends: set[tuple[PartialSum, ...] | None] = set()
    operands = list(choice.operands)
    for position, made in choices.items():
        ends.add(_mapped(operator, position, made.partial))
        operands[position] = before_sums(made)
    if len(ends) != 1:
        return None
    (partial,) = ends
    # A factor of another operand would be split by the axes that the partial sums lie along.
    alone = len(choices) == len(operands)
    if partial is None or not (
        alone or all(partial_sum.scatter_dim is None for partial_sum in partial)
    ):
        return None
    after = OperatorChoice(operands=tuple(operands), results=choice.results, partial=partial)
    return after if _is_innermost(after) and _same_split(operator, after) else None


def _mapped(
    operator: Computed, position: int, partial: Sequence[PartialSum]
) -> tuple[PartialSum, ...] | None:
    """Return partial sums of an operand as those of the result; None if a dim is not there."""
    mapped: list[PartialSum] = []
    operand, result = operator.rule.operands[position], operator.rule.results[0]
    for partial_sum in partial:
        if partial_sum.scatter_dim is None:
            mapped.append(partial_sum)
            continue
        factor = operand[partial_sum.scatter_dim]
        if factor is None or factor not in result:
            return None
        mapped.append(PartialSum(axes=partial_sum.axes, scatter_dim=result.index(factor)))
    return tuple(mapped)


def _is_innermost(choice: OperatorChoice) -> bool:
    """Return whether the result ends split by what its partial sums are scattered along."""
    dims = list(choice.results[0].dims)
    for end in reversed(choice.partial):
        if end.scatter_dim is not None:
            axes = dims[end.scatter_dim]
            if axes[len(axes) - len(end.axes) :] != end.axes:
                return False
            dims[end.scatter_dim] = axes[: len(axes) - len(end.axes)]
    split = {axis for dim in dims for axis in dim}
    # An axis that splits what is partial along it: the operator has sliced its operand.
    return split.isdisjoint(axis for end in choice.partial for axis in end.axes)


def _same_split(operator: Computed, choice: OperatorChoice) -> bool:
    """Return whether operands and result split each factor alike before the reduction."""
    split: dict[int, object] = {}
    before = (*choice.operands, before_sums(choice))
    rules = (*operator.rule.operands, *operator.rule.results)
    return all(
        axes == split.setdefault(factor, axes)
        for dims, sharding in zip(rules, before, strict=True)
        for factor, axes in zip(dims, sharding.dims, strict=True)
        if factor is not None
    )


def _least_ahead(state: _State, index: int, after: OperatorChoice) -> float:
    """Return the least bytes at which the sums could be reduced, from this operator on.

    A cast that makes them larger may stand before the sum over microbatches.
    """
    least = state.bytes_of(index, after)
    partial = after
    while True:
        readers = state.readers.get(state.operators[index].outputs[0], [])
        if len(readers) != 1 or readers[0] < 0:
            return least
        index, number = readers[0], state.operators[index].outputs[0]
        operator, choice = state.operators[index], state.choices[index]
        if operator.primitive not in _UNARY or choice.partial or operator.inputs != (number,):
            return least
        choices = _through(operator, choice, {0: partial})
        if choices is None or choice.operands[0] != partial.results[0]:
            return least
        partial = choices
        least = min(least, state.bytes_of(index, choices))
