"""Operators into layers, against all ways to do it."""

from itertools import combinations, pairwise

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from jaxpipe.autoshard.inter_op import cluster_layers
from jaxpipe.errors import PlanError


@given(
    st.lists(st.tuples(st.integers(1, 5), st.integers(0, 9)), min_size=1, max_size=7),
    st.integers(1, 4),
    st.sampled_from([0.0, 0.3, 2.0]),
)
def test_no_other_layers_have_a_cheaper_costliest_cut(
    operators: list[tuple[int, int]], num_layers: int, imbalance: float
):
    assume(num_layers <= len(operators))
    flops, sent = [flop for flop, _ in operators], [num for _, num in operators[:-1]]
    limit = (1 + imbalance) * sum(flops) / num_layers * (1 + 1e-12)
    costs = [
        max((sent[stop - 1] for stop in cuts), default=0)
        for cuts in combinations(range(1, len(flops)), num_layers - 1)
        for edges in [(0, *cuts, len(flops))]
        if all(b - a == 1 or sum(flops[a:b]) <= limit for a, b in pairwise(edges))
    ]
    if not costs:
        with pytest.raises(PlanError, match="`imbalance`"):
            cluster_layers(flops, sent, num_layers=num_layers, imbalance=imbalance)
        return
    layers = cluster_layers(flops, sent, num_layers=num_layers, imbalance=imbalance)
    assert [n for layer in layers for n in layer] == list(range(len(flops)))
    assert len(layers) == num_layers
    assert max((sent[layer.stop - 1] for layer in layers[:-1]), default=0) == min(costs)


@pytest.mark.parametrize("num_layers", [0, 4])
def test_a_layer_without_an_operator_is_refused(num_layers: int):
    with pytest.raises(PlanError, match=f"`num_layers` is {num_layers} for 3 operators"):
        cluster_layers([1, 1, 1], [1, 1], num_layers=num_layers)
