"""Labels of the Pareto search: what a prefix of a strategy has cost, and what its open stage owes.

A label is a row of seven numbers; smaller is never worse in any::

    settled   all that is certain but for the compute of the open stage: compute, stalls, updates
    compute   of the open stage, one half's forward; it is also the credit of the next stage
    gather    minus what can still hide communication before the stage's first half    (forward)
    sync      minus what can still hide communication after its last half              (backward)
    forward   communication of one half that the open stage does not hide yet, or 0    (forward)
    mirrored  the same                                                                 (backward)
    memory    bytes, or 0 where memory has no limit

The time of a step is its compute and its stalls: where a collective lasts longer than the compute
that hides it. `compute` is both a cost and a credit: more of it is not worse, if the step is not
longer.
"""

from typing import Final

import numpy as np

from jaxpipe.baselines.autoshard.duplex.operator_cost import BACKWARD, OperatorCost

SETTLED, COMPUTE, GATHER, SYNC, FORWARD, MIRRORED, MEMORY = range(7)
COLUMNS: Final = 7

PASSES: Final = 2 * (1 + BACKWARD)
"""Forwards in a step: two halves, each with a forward and a backward."""

OPENS: Final = COLUMNS
"""The column of a step that says whether it opens a stage."""

Rows = np.ndarray
Steps = np.ndarray

_BLOCK = 256


def start() -> Rows:
    """Return the label of an empty prefix."""
    return np.zeros((1, COLUMNS))


def elapsed(rows: Rows) -> np.ndarray:
    """Return the seconds of each prefix, had nothing followed it."""
    stalls = np.maximum(rows[:, FORWARD] - rows[:, COMPUTE], 0)
    stalls += np.maximum(rows[:, MIRRORED] - BACKWARD * rows[:, COMPUTE], 0)
    return bounds(rows) + stalls


def bounds(rows: Rows) -> np.ndarray:
    """Return seconds below which no continuation of a prefix ends: what is settled, and compute."""
    return rows[:, SETTLED] + PASSES * rows[:, COMPUTE]


def extended(rows: Rows, steps: Steps) -> Rows:
    """Return each label after one more operator, in the open stage or in a new one.

    `steps` has a row for each label, of `step_row`.
    """
    after = rows.copy()
    opens = steps[:, OPENS] > 0
    credit = rows[opens, COMPUTE]
    after[opens, SETTLED] = elapsed(rows[opens])
    after[opens, COMPUTE] = 0.0
    after[opens, GATHER] = -credit
    after[opens, SYNC] = -BACKWARD * credit
    after[opens, FORWARD] = 0.0
    after[opens, MIRRORED] = 0.0
    after += steps[:, :COLUMNS]
    return _settled(after)


def step_row(
    cost: OperatorCost, *, new_stage: bool, with_memory: bool, overlaps_backward: bool
) -> tuple[float, ...]:
    """Return what an operator adds to each column of a label, and whether it opens a stage."""
    # What nothing hides is settled at once: both halves, and the sum of gradients.
    exposed_s = 0.0 if overlaps_backward else 2 * cost.backward_s + cost.sync_s
    return (
        cost.update_s + exposed_s,
        cost.compute_s,
        cost.forward_s + cost.gather_s,
        cost.backward_s + cost.sync_s if overlaps_backward else 0.0,
        cost.forward_s,
        cost.backward_s if overlaps_backward else 0.0,
        cost.memory_bytes if with_memory else 0.0,
        float(new_stage),
    )


def _settled(rows: Rows) -> Rows:
    """Settle what is certain, so that labels differ only in what still matters."""
    for column in (GATHER, SYNC):
        # Nothing is left to hide more of it: from here on it is time.
        rows[:, SETTLED] += np.maximum(rows[:, column], 0)
        np.minimum(rows[:, column], 0, out=rows[:, column])
    # Hidden for good, since the compute of the stage only grows.
    rows[rows[:, FORWARD] <= rows[:, COMPUTE], FORWARD] = 0.0
    rows[rows[:, MIRRORED] <= BACKWARD * rows[:, COMPUTE], MIRRORED] = 0.0
    return rows


def undominated(rows: Rows) -> np.ndarray:
    """Return the indices of the labels that no other dominates; of equal ones the first."""
    if len(rows) == 1:
        return np.zeros(1, dtype=int)
    order = np.lexsort((rows[:, COMPUTE], rows[:, SETTLED] + PASSES * rows[:, COMPUTE]))
    front = order[:0]
    for begin in range(0, len(order), _BLOCK):
        block = order[begin : begin + _BLOCK]
        if len(front):
            block = block[~_dominates(rows[front], rows[block]).any(axis=0)]
        among = _dominates(rows[block], rows[block])
        # Of labels that dominate each other, which are equal, the first stays.
        among &= ~(among.T & (np.arange(len(block))[:, None] >= np.arange(len(block))[None, :]))
        front = np.concatenate([front, block[~among.any(axis=0)]])
    return np.sort(front)


def _dominates(first: Rows, second: Rows) -> np.ndarray:
    """Return, for each pair, whether the first label is at least as good in everything."""
    more = np.maximum(first[:, None, COMPUTE] - second[None, :, COMPUTE], 0)
    # More compute is paid for by a longer step, or else it is credit.
    dominates = first[:, None, SETTLED] + PASSES * more <= second[None, :, SETTLED]
    for column in range(GATHER, COLUMNS):
        dominates &= first[:, None, column] <= second[None, :, column]
    return dominates
