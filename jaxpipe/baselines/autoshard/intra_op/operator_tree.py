"""Who follows whom: each light operator is computed as the largest operand it reads was made.

Of operands that are equally large, the deepest counts: the one with most deciding operators on its
longest way from the arguments. Large is what an array was before it was broadcast: the mean of a
layer norm decides nothing. What follows whom makes trees; the root of each is an argument or a
deciding operator, and its choice is that of all that follow.

An argument on which no deciding operator depends is optimizer state. It is stored as its update
leaves it, and so belongs to the tree of the result that has its path. Deciding are products,
look-ups, and the sums that make the gradients of vectors.

Source: Zheng et al., "Alpa", OSDI 2022, section 4.2 ("merge computationally-trivial operators").
"""

from dataclasses import dataclass
from math import prod

from jaxpipe.baselines.autoshard.graph import Graph, Operator, final_arrays


@dataclass(frozen=True, slots=True, kw_only=True)
class Tree:
    """What each operator follows, and in which order arrays can be settled.

    `followed[i]` is the position of the operand that operator i follows, or None: it decides.
    `order` are operators, so that what each follows comes before it; `states` are the arguments
    that are stored as a result, by which result. `final[a]` says that no deciding operator depends
    on array a: gradients, and what comes after.
    """

    followed: tuple[int | None, ...]
    order: tuple[int, ...]
    states: dict[int, int]
    final: tuple[bool, ...]


def tree_of(graph: Graph) -> Tree:
    """Return who follows whom in a graph."""
    final = final_arrays(graph)
    followed, root = _followed(graph, final)
    states = {
        argument: graph.results[path]
        for path, argument in graph.arguments.items()
        if final[argument]
        and path in graph.results
        # Its own root already: following that result would be a cycle.
        and root[graph.results[path]] != argument
        # In another shape, the layout of the result means nothing.
        and graph.arrays[graph.results[path]].shape == graph.arrays[argument].shape
    }
    # One level only: a state whose result hangs on another state keeps its own layout.
    settled_by_state = _rooted_in(states, root)
    # Trees that start at a state come last: its layout is known once its result has settled.
    first = [op.index for op in graph.operators if op.results[0] not in settled_by_state]
    later = [op.index for op in graph.operators if op.results[0] in settled_by_state]
    states = {a: r for a, r in states.items() if r not in settled_by_state}
    return Tree(followed=followed, order=(*first, *later), states=states, final=final)


def _rooted_in(states: dict[int, int], root: list[int]) -> set[int]:
    return {array for array, top in enumerate(root) if top in states and top != array}


def _followed(graph: Graph, final: tuple[bool, ...]) -> tuple[tuple[int | None, ...], list[int]]:
    """Return what each operator follows, and the root of each array; a root is its own."""
    depth = [0] * len(graph.arrays)
    size = [prod(array.shape) for array in graph.arrays]
    root = list(range(len(graph.arrays)))
    followed: list[int | None] = []
    for operator in graph.operators:
        read = [operand for operand in operator.operands if operand is not None]
        deepest = max(depth[array] for array in read)
        decides = operator.deciding or _sums_gradient(operator, graph, final)
        largest = None if decides else _largest(operator, size, depth)
        followed.append(largest)
        for result in operator.results:
            depth[result] = deepest + operator.deciding
            if largest is not None:
                top = operator.operands[largest]
                assert top is not None, operator
                root[result] = root[top]
                size[result] = min(size[result], size[top])
    return tuple(followed), root


def _sums_gradient(operator: Operator, graph: Graph, final: tuple[bool, ...]) -> bool:
    """Return whether an operator makes the gradient of a vector: a sum over a batch.

    It decides, so that its partial sums may be scattered as those of products are.
    """
    (result, *_) = operator.results
    return (
        operator.primitive == "reduce_sum"
        and final[result]
        and bool(graph.arrays[result].shape)
        and any(operator.rule.sizes[factor] > 1 for factor in operator.rule.summed)
    )


def _largest(operator: Operator, size: list[int], depth: list[int]) -> int:
    """Return the position of the operand that was largest before it was broadcast."""
    return max(
        (index for index, array in enumerate(operator.operands) if array is not None),
        key=lambda index: (size[operator.operands[index]], depth[operator.operands[index]]),  # type: ignore[index]
    )
