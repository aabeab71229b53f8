"""Lower bounds of the rest of a step, from each state: what a search can drop.

Compute and communication each need their time, whatever hides behind what. So for any weight w, the
rest of the step lasts at least

    w x compute + (1 - w) x (communication - what the open stage can still hide) + updates

whose least value over all continuations is a shortest path through the states.
"""

from collections.abc import Sequence
from typing import Final

import numpy as np

from jaxpipe.baselines.autoshard.duplex.form import PARTIAL
from jaxpipe.baselines.autoshard.duplex.labels import (
    COMPUTE,
    FORWARD,
    GATHER,
    MIRRORED,
    PASSES,
    SETTLED,
    SYNC,
    Rows,
    bounds,
)
from jaxpipe.baselines.autoshard.duplex.moves import Moves
from jaxpipe.baselines.autoshard.duplex.operator_cost import BACKWARD

_WEIGHTS: Final = (0.0, 0.5, 1.0)


class RestBounds:
    """Bounds of the rest, for each operator and state."""

    def __init__(self, moves: Moves) -> None:
        reached = _reached(moves)
        self._rest = [_paths(moves, reached, weight) for weight in _WEIGHTS]

    def of(self, rows: Rows, states: np.ndarray, index: int) -> np.ndarray:
        """Return seconds below which no continuation of each label after operator `index` ends."""
        # What still hides communication of the open stage, and the credit of the next one.
        hiding = (1 + BACKWARD) * rows[:, COMPUTE] - rows[:, GATHER] - rows[:, SYNC]
        least = [
            rest[index + 1][states] - (1 - weight) * hiding
            for weight, rest in zip(_WEIGHTS, self._rest, strict=True)
        ]
        return bounds(rows) + np.max(least, axis=0)


def _reached(moves: Moves) -> list[list[int]]:
    """Return the states before each operator, and at the end."""
    states = [[int(state) for state in moves.first]]
    for index in range(moves.num_operators):
        successors = [moves.after(index, state).states for state in states[-1]]
        states.append(np.unique(np.concatenate(successors)).tolist())
    return states


def _paths(moves: Moves, reached: Sequence[Sequence[int]], weight: float) -> list[np.ndarray]:
    """Return for each operator the shortest rest by state, and after the last one 0 or infinity."""
    size = max(max(states) for states in reached) + 1
    end = np.full(size, np.inf)
    for state in reached[-1]:
        if PARTIAL in moves.loss_forms(state):
            end[state] = 0.0
    rest = [end]
    for index in reversed(range(moves.num_operators)):
        least = np.full(size, np.inf)
        for state in reached[index]:
            successors = moves.after(index, state)
            least[state] = (_length(successors.steps, weight) + rest[-1][successors.states]).min()
        rest.append(least)
    return rest[::-1]


def _length(steps: np.ndarray, weight: float) -> np.ndarray:
    moved = steps[:, [GATHER, SYNC, FORWARD, MIRRORED]].sum(axis=1)
    return steps[:, SETTLED] + weight * PASSES * steps[:, COMPUTE] + (1 - weight) * moved
