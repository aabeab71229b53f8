"""Leave out cells of an edge's table that are sums of others: resharding in steps.

Most entries of a table of reshardings are compositions: a gather, then a slice. A *hub* is a column
h from which flow goes on as if it came from row g, free of cost. It may be added if it makes
nothing cheaper, and makes those cells superfluous that are the sum of its two parts::

    table[r, c] <= table[r, h] + table[g, c]     for all r, c: the hub may be added
    table[r, c] == table[r, h] + table[g, c]     the cell (r, c) is left out

A cell is left out only while both parts are there; what is left out later goes by cells that are
there later, so that in the end all have their way. Costs are unchanged, and there are several
times fewer variables. This needs nothing of the table but its numbers.

Source: ours; it is the transitive reduction of the network of layouts, told from the costs alone.
"""

from dataclasses import dataclass

import numpy as np

_EXACT = 1e-12


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Network:
    """What is left of a table: `cells[i]` are (row, column), `hubs[i]` (column, row)."""

    cells: np.ndarray
    hubs: np.ndarray


def network_of(table: np.ndarray) -> Network:
    """Return the cells and hubs by which all of a table's entries can be reached at their cost.

    Cost: O(rows ** 2 * columns ** 2).

    >>> network = network_of(np.array([[0.0, 0.0, 0.0], [5.0, 0.0, 5.0], [5.0, 5.0, 0.0]]))
    >>> network.cells.tolist(), network.hubs.tolist()
    ([[0, 0], [1, 0], [1, 1], [2, 0], [2, 2]], [[0, 0], [0, 1], [0, 2]])
    """
    hubs = _admissible(table)
    there = np.ones(table.shape, dtype=bool)
    used = np.zeros(len(hubs), dtype=bool)
    into, out_of = hubs[:, 0], hubs[:, 1]
    slack = _EXACT * max(float(table.max()), 1e-300)
    for row, column in sorted(np.ndindex(*table.shape), key=lambda cell: -table[cell]):
        through = table[row, into] + table[out_of, column] <= table[row, column] + slack
        through &= there[row, into] & there[out_of, column] & (into != column) & (out_of != row)
        if through.any():
            there[row, column] = False
            again = through & used
            used[np.argmax(again if again.any() else through)] = True
    return Network(cells=np.argwhere(there), hubs=hubs[used])


def _admissible(table: np.ndarray) -> np.ndarray:
    """Return the hubs that make nothing cheaper, as (column, row)."""
    slack = _EXACT * max(float(table.max()), 1e-300)
    found = []
    for column in range(table.shape[1]):
        through = table[:, column, None, None] + table[None, :, :]
        fine = (through >= table[:, None, :] - slack).all(axis=(0, 2))
        found += [(column, row) for row in np.flatnonzero(fine)]
    return np.array(found, dtype=int).reshape(-1, 2)
