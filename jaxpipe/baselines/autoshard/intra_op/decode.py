"""Convert choices to a strategy, and a strategy back to choices."""

from collections.abc import Iterator, Sequence

import numpy as np

from jaxpipe.baselines.autoshard.graph import Operator
from jaxpipe.baselines.autoshard.intra_op.build_problem import Space
from jaxpipe.baselines.autoshard.strategy import (
    OperatorChoice,
    Sharding,
    Strategy,
    ZeroLevel,
)
from jaxpipe.errors import PlanError


def strategy_of(space: Space, numbers: Sequence[int], *, name: str) -> Strategy:
    """Return the strategy of one choice at each node."""
    graph = space.graph
    return Strategy(
        name=name,
        mesh=space.layouts.mesh,
        arguments={
            path: stored_as(space, array, numbers) for path, array in graph.arguments.items()
        },
        results={
            # A result is resharded to its argument's layout: the next step must be able to read it.
            path: stored_as(space, graph.arguments.get(path, array), numbers)
            for path, array in graph.results.items()
        },
        operators={
            operator.index: choice_of(space, operator, numbers) for operator in graph.operators
        },
        zero=_zero_level(space, numbers),
        seconds=space.problem.seconds(numbers),
    )


def stored_as(space: Space, array: int, numbers: Sequence[int]) -> Sharding:
    """Return the sharding in which an array is stored."""
    return space.layouts.of(space.graph.arrays[array]).shardings[number_of(space, array, numbers)]


def number_of(space: Space, array: int, numbers: Sequence[int]) -> int:
    """Return the number of the layout in which an array is stored."""
    stored = space.stored[array]
    return int(stored.layout[numbers[stored.node]])


def choice_of(space: Space, operator: Operator, numbers: Sequence[int]) -> OperatorChoice:
    """Return the sharding of an operator."""
    return space.table(operator).choices[table_row(space, operator, numbers)]


def table_row(space: Space, operator: Operator, numbers: Sequence[int]) -> int:
    """Return the row of an operator's choice in its table."""
    operand = space.tree.followed[operator.index]
    if operand is None:
        node = space.deciding[operator.index]
        # Tables number all choices, nodes those that pruning kept.
        return int(space.choice_numbers[node][numbers[node]])
    followed = operator.operands[operand]
    assert followed is not None, operator
    return number_of(space, followed, numbers)


def choices_in(space: Space, strategy: Strategy) -> tuple[int, ...]:
    """Return the choice of a strategy at each node: the inverse of `strategy_of`.

    Raises:
        PlanError: the strategy is for another step or another mesh.
    """
    mesh = space.layouts.mesh
    if (strategy.mesh.dp, strategy.mesh.op) != (mesh.dp, mesh.op):
        raise PlanError(
            f"strategy {strategy.name!r} is for {strategy.mesh.dp} x {strategy.mesh.op} devices, "
            f"not {mesh.dp} x {mesh.op}; search again"
        )
    numbers = [0] * len(space.problem.nodes)
    for path, array in space.graph.arguments.items():
        # A state follows the choice of the result that replaces it.
        if array not in space.tree.states:
            layouts = space.layouts.of(space.graph.arrays[array])
            number = layouts.number.get(_given(strategy, path), -1)
            _choose(space.stored[array].layout == number, numbers, space.stored[array].node, path)
    for index, node in space.deciding.items():
        choices = space.table(space.graph.operators[index]).choices
        wanted = strategy.operators.get(index)
        same = np.array([choices[number] == wanted for number in space.choice_numbers[node]])
        _choose(same, numbers, node, f"operator {index}")
    return tuple(numbers)


def _given(strategy: Strategy, path: str) -> Sharding:
    if path not in strategy.arguments:
        raise PlanError(
            f"strategy {strategy.name!r} must shard each argument, and lacks `{path}`: it is for "
            "another step; search again"
        )
    return strategy.arguments[path]


def _choose(same: np.ndarray, numbers: list[int], node: int, what: str) -> None:
    if not same.any():
        raise PlanError(
            f"`{what}` cannot be as the strategy says: it is for another step; search again"
        )
    # Choices that agree on all that is asked are equal: the first will do.
    numbers[node] = int(np.argmax(same))


def _zero_level(space: Space, numbers: Sequence[int]) -> ZeroLevel:
    """Return the ZeRO level of the strategy, from what reduced gradients leave sharded."""
    scattered = [
        operator
        for operator in _gradients(space)
        if any(p.scatter_dim is not None for p in choice_of(space, operator, numbers).partial)
    ]
    if not scattered:
        return ZeroLevel.NONE
    summed = {a for operator in scattered for a in choice_of(space, operator, numbers).partial_axes}
    graph = space.graph
    for path, array in graph.arguments.items():
        if path in graph.results and array not in space.tree.states:
            split = set(stored_as(space, array, numbers).axes)
            if len(graph.arrays[array].shape) > 1 and not summed <= split:
                return ZeroLevel.GRADIENTS
    return ZeroLevel.PARAMETERS


def _gradients(space: Space) -> Iterator[Operator]:
    for index in space.deciding:
        operator = space.graph.operators[index]
        if space.tree.final[operator.results[0]]:
            yield operator
