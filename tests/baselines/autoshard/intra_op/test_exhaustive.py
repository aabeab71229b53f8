"""The search against all strategies of small graphs, each priced on its own."""

from itertools import pairwise, product

import jax
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxpipe.baselines.autoshard.graph import Graph, trace_step
from jaxpipe.baselines.autoshard.intra_op import Machine, find_strategy
from jaxpipe.baselines.autoshard.intra_op.build_problem import space_of
from jaxpipe.baselines.autoshard.strategy import AxisLink, MeshShape


def chain(rows: int, dims: tuple[int, ...]) -> Graph:
    """Return the graph of products in a chain, with something light between them."""

    def step(x: jax.Array, weights: list[jax.Array]) -> jax.Array:
        for weight in weights:
            x = jax.nn.relu(x @ weight) + 1
        return x

    x = jax.ShapeDtypeStruct((rows, dims[0]), "float32")
    weights = [jax.ShapeDtypeStruct(shape, "float32") for shape in pairwise(dims)]
    return trace_step(step, x, weights, names=("x", "weights"), result_names=("y",))


@given(
    rows=st.sampled_from([1, 2, 6, 64]),
    dims=st.lists(st.sampled_from([1, 2, 6, 64]), min_size=2, max_size=3).map(tuple),
    mesh=st.sampled_from([(1, 1), (1, 2), (3, 1), (2, 2)]),
    latency_s=st.sampled_from([0.0, 1e-6, 1e-3]),
    bandwidth=st.sampled_from([1e5, 1e8]),
)
def test_no_strategy_of_a_small_graph_takes_less(
    rows: int, dims: tuple[int, ...], mesh: tuple[int, int], latency_s: float, bandwidth: float
) -> None:
    if mesh == (2, 2):
        dims = dims[:2]  # there are too many strategies of longer chains
    link = AxisLink(latency_s=latency_s, bandwidth_bytes_per_s=bandwidth)
    shape = MeshShape(dp=mesh[0], op=mesh[1], dp_link=link, op_link=link)
    graph, machine = chain(rows, dims), Machine(flops_per_s=1e7)
    problem = space_of(graph, shape, machine).problem
    least = min(
        problem.seconds(each) for each in product(*(range(len(node)) for node in problem.nodes))
    )
    found = find_strategy(graph, shape, machine)
    assert found.priced.strategy.seconds == pytest.approx(least)
    assert found.gap == pytest.approx(0.0, abs=1e-6)
