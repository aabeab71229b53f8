"""When memory is needed most: which arrays are held at which moments of the step.

Arguments are held all the time; results of their paths take their place. Beside them two moments
count, by what unsharded arrays would hold: when most activations wait for the backward, and when
there are most gradients. As every array counts that the jaxpr keeps, what a compiler fuses away
included, this is an upper estimate.
"""

from enum import IntEnum

import numpy as np

from jaxpipe.autoshard.graph import Graph


class Moment(IntEnum):
    """A moment of the step, by its place in arrays of memory."""

    ACTIVATIONS = 0
    GRADIENTS = 1


def held(graph: Graph, final: tuple[bool, ...]) -> np.ndarray:
    """Return whether each array is held at each moment, as `[moment, array]`.

    `final[a]` says that no deciding operator depends on array a, as on gradients.
    """
    made, used = _lifetimes(graph)
    sizes = np.array([array.num_bytes for array in graph.arrays], dtype=float)
    is_final = np.array(final)
    arguments = np.zeros(len(graph.arrays), dtype=bool)
    arguments[list(graph.arguments.values())] = True
    in_place = np.zeros(len(graph.arrays), dtype=bool)
    in_place[[array for path, array in graph.results.items() if path in graph.arguments]] = True
    result = np.tile(arguments, (len(Moment), 1))
    for moment, kind in ((Moment.ACTIVATIONS, ~is_final), (Moment.GRADIENTS, is_final)):
        counted = kind & ~arguments & ~in_place
        change = np.zeros(len(graph.operators) + 2)
        np.add.at(change, made[counted], sizes[counted])
        np.add.at(change, used[counted] + 1, -sizes[counted])
        when = int(np.argmax(np.cumsum(change)))
        result[moment] |= (made <= when) & (when <= used) & ~arguments & ~in_place
    return result


def _lifetimes(graph: Graph) -> tuple[np.ndarray, np.ndarray]:
    """Return for each array by which operator it is made, and which one reads it last."""
    made = np.zeros(len(graph.arrays), dtype=int)
    used = np.zeros(len(graph.arrays), dtype=int)
    for operator in graph.operators:
        for result in operator.results:
            made[result] = used[result] = operator.index
        for operand in operator.operands:
            if operand is not None:
                used[operand] = operator.index
    used[list(graph.results.values())] = len(graph.operators)
    return made, used
