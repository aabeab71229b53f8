"""Networks, against the shortest ways through them."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from jaxpipe.baselines.autoshard.graph import ArrayType
from jaxpipe.baselines.autoshard.intra_op.reshard_pruning import network_of
from jaxpipe.baselines.autoshard.resharding import LayoutBook
from jaxpipe.baselines.autoshard.strategy import AxisLink, MeshShape

LINK = AxisLink(latency_s=1e-6, bandwidth_bytes_per_s=1e9)


def shortest(table: np.ndarray) -> np.ndarray:
    """Return the cost from each row to each column through the remaining cells."""
    network = network_of(table)
    num_rows, num_columns = table.shape
    ways = np.full((num_rows + num_columns,) * 2, np.inf)
    np.fill_diagonal(ways, 0.0)
    for row, column in network.cells:
        ways[row, num_rows + column] = table[row, column]
    for column, row in network.intermediates:
        ways[num_rows + column, row] = 0.0
    for middle in range(len(ways)):
        ways = np.minimum(ways, ways[:, middle, None] + ways[None, middle])
    return ways[:num_rows, num_rows:]


@given(seed=st.integers(0, 2**32 - 1), rows=st.integers(1, 6), columns=st.integers(1, 6))
def test_any_table_keeps_its_costs(seed: int, rows: int, columns: int) -> None:
    table = np.random.default_rng(seed).integers(0, 4, (rows, columns)).astype(float)
    np.testing.assert_array_equal(shortest(table), table)


def test_reshardings_keep_their_costs_in_fewer_cells() -> None:
    book = LayoutBook(mesh=MeshShape(dp=2, op=4, dp_link=LINK, op_link=LINK), launch_s=5e-6)
    layouts = book.of(ArrayType(shape=(8, 16, 32), dtype="float32", itemsize=4))
    table = layouts.wire_s + layouts.latency_s
    network = network_of(table)
    np.testing.assert_allclose(shortest(table), table, rtol=1e-9)
    assert len(network.cells) + len(network.intermediates) < table.size / 2
