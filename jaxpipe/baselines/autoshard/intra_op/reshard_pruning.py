"""Prune reshardings that are compositions of others, through an intermediate layout.

Most entries of a table of reshardings are compositions: a gather, then a slice. An
*intermediate* layout joins a column h to a row g, free of cost. It may be added if it makes no
entry cheaper, and it makes those cells redundant that are the sum of its two parts::

    table[r, c] <= table[r, h] + table[g, c]     for all r, c: it may be added
    table[r, c] == table[r, h] + table[g, c]     the cell (r, c) is left out

A cell is left out only while both parts are present, so that every pair of layouts stays reachable.
Costs are unchanged, and there are several times fewer variables. Only the numbers of the table are
needed.

Source: ours; the transitive reduction of the network of layouts, derived from the costs alone.
"""

from dataclasses import dataclass

import numpy as np

_EXACT = 1e-12  # of the largest entry: equal sums differ by rounding


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PrunedTable:
    """A pruned table: `cells[i]` are (row, column), `intermediates[i]` (column, row)."""

    cells: np.ndarray
    intermediates: np.ndarray


def network_of(table: np.ndarray) -> PrunedTable:
    """Return the cells and intermediates that connect all entries of a table at their cost.

    Cost: O(rows ** 2 * columns ** 2).

    >>> network = network_of(np.array([[0.0, 0.0, 0.0], [5.0, 0.0, 5.0], [5.0, 5.0, 0.0]]))
    >>> network.cells.tolist(), network.intermediates.tolist()
    ([[0, 0], [1, 0], [1, 1], [2, 0], [2, 2]], [[0, 0], [0, 1], [0, 2]])
    """
    intermediates = _admissible(table)
    there = np.ones(table.shape, dtype=bool)
    used = np.zeros(len(intermediates), dtype=bool)
    into, out_of = intermediates[:, 0], intermediates[:, 1]
    slack = _EXACT * max(float(table.max()), 1e-300)  # 1e-300: a table of zeros has no scale
    # Largest first: compositions cost more than their parts, which must still be present.
    for row, column in sorted(np.ndindex(*table.shape), key=lambda cell: -table[cell]):
        through = table[row, into] + table[out_of, column] <= table[row, column] + slack
        # An intermediate at the cell itself would replace the cell by the cell.
        through &= there[row, into] & there[out_of, column] & (into != column) & (out_of != row)
        if through.any():
            there[row, column] = False
            # One that is used already costs no variable.
            again = through & used
            used[np.argmax(again if again.any() else through)] = True
    return PrunedTable(cells=np.argwhere(there), intermediates=intermediates[used])


def _admissible(table: np.ndarray) -> np.ndarray:
    """Return the intermediates that make no entry cheaper, as (column, row)."""
    slack = _EXACT * max(float(table.max()), 1e-300)
    admissible = []
    for column in range(table.shape[1]):
        through = table[:, column, None, None] + table[None, :, :]
        # For all rows and columns: cheaper for a single pair, it would change the optimum.
        fine = (through >= table[:, None, :] - slack).all(axis=(0, 2))
        admissible += [(column, row) for row in np.flatnonzero(fine)]
    return np.array(admissible, dtype=int).reshape(-1, 2)
