"""The arrays that are live at each of the two memory peaks of a step.

Arguments are live throughout; results with the path of an argument replace it. There are two peaks,
found for unsharded arrays: when most activations wait for the backward, and when most gradients
exist. Every array of the jaxpr counts, also those that a compiler fuses away, so this is an upper
estimate.
"""

from enum import IntEnum

import numpy as np

from jaxpipe.baselines.autoshard.graph import Graph


class Peak(IntEnum):
    """A memory peak of the step; its value is the row in arrays of memory."""

    ACTIVATIONS = 0
    GRADIENTS = 1


def live_at_peaks(graph: Graph, final: tuple[bool, ...]) -> np.ndarray:
    """Return whether each array is live at each peak, as `[peak, array]`.

    `final[a]` says that no deciding operator depends on array a, as on gradients.
    """
    made, used = _lifetimes(graph)
    sizes = np.array([array.num_bytes for array in graph.arrays], dtype=float)
    is_final = np.array(final)
    arguments = np.zeros(len(graph.arrays), dtype=bool)
    arguments[list(graph.arguments.values())] = True
    in_place = np.zeros(len(graph.arrays), dtype=bool)
    in_place[[array for path, array in graph.results.items() if path in graph.arguments]] = True
    # Arguments stay for the whole step, and their new values take their place (donation).
    result = np.tile(arguments, (len(Peak), 1))
    for peak, kind in ((Peak.ACTIVATIONS, ~is_final), (Peak.GRADIENTS, is_final)):
        counted = kind & ~arguments & ~in_place
        # Two more places: results live past the last operator, and are freed after that.
        change = np.zeros(len(graph.operators) + 2)
        # `add.at`: an index may repeat, and `change[made] += sizes` would count it once.
        np.add.at(change, made[counted], sizes[counted])
        np.add.at(change, used[counted] + 1, -sizes[counted])
        # With a fixed moment, memory is linear in the choices, as the integer program needs it.
        when = int(np.argmax(np.cumsum(change)))
        result[peak] |= (made <= when) & (when <= used) & ~arguments & ~in_place
    return result


def _lifetimes(graph: Graph) -> tuple[np.ndarray, np.ndarray]:
    """Return the index of the operator that makes each array, and of the last one that reads it."""
    made = np.zeros(len(graph.arrays), dtype=int)
    used = np.zeros(len(graph.arrays), dtype=int)
    for operator in graph.operators:
        for result in operator.results:
            made[result] = used[result] = operator.index
        for operand in operator.operands:
            if operand is not None:
                used[operand] = operator.index
    used[list(graph.results.values())] = len(graph.operators)  # results live to the end
    return made, used
