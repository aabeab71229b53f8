from itertools import combinations, pairwise
from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxpipe.autoshard.inter_op import cluster_operators, crossing_bytes
from jaxpipe.errors import PlanError
from tests.autoshard.steps import Size, gpt_graph


@given(
    operators=st.lists(st.tuples(st.integers(0, 5), st.integers(0, 9)), min_size=1, max_size=7),
    num_layers=st.integers(1, 4),
    tolerance=st.sampled_from([0.0, 0.5, 2.0]),
)
def test_layers_are_the_best_of_all(
    operators: list[tuple[int, int]], num_layers: int, tolerance: float
) -> None:
    flops, crossing = zip(*operators, strict=True)
    share = (1 + tolerance) * sum(flops) / num_layers
    best = (inf, inf)
    for inner in combinations(range(1, len(flops)), num_layers - 1):
        ends = [0, *inner, len(flops)]
        work = [sum(flops[a:b]) for a, b in pairwise(ends)]
        if max(work) <= share and len(ends) == num_layers + 1:
            worst = max((crossing[each] for each in inner), default=0)
            best = min(best, (worst, sum(each**2 for each in work)))
    if best[0] == inf:
        with pytest.raises(PlanError, match="raise it, or ask for fewer layers"):
            cluster_operators(flops, crossing, num_layers=num_layers, tolerance=tolerance)
        return
    sizes = cluster_operators(flops, crossing, num_layers=num_layers, tolerance=tolerance)
    assert sum(sizes) == len(flops)
    starts = [sum(sizes[:place]) for place in range(num_layers + 1)]
    assert max((crossing[each] for each in starts[1:-1]), default=0) == best[0]


def test_what_crosses_is_what_is_read_later() -> None:
    graph = gpt_graph(Size(num_layers=1))
    crossing = crossing_bytes(graph)
    assert len(crossing) == len(graph.operators)
    assert crossing[0] == 0
    assert max(crossing) <= sum(array.num_bytes for array in graph.arrays)
