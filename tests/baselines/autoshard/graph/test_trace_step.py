from collections import Counter

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxpipe.baselines.autoshard.graph import batch_dims, roles_of, trace_step
from jaxpipe.errors import PlanError
from tests.baselines.autoshard.steps import Size, gpt_graph

X = np.ones((4, 8), np.float32)
W = np.ones((8, 8), np.float32)


def test_functions_and_loops_are_inlined() -> None:
    @jax.jit
    def layer(x: jax.Array) -> jax.Array:
        return jnp.tanh(x @ W)

    def step(x: jax.Array) -> jax.Array:
        x, outs = jax.lax.scan(lambda c, _: (layer(c), c.sum()), layer(x), None, length=3)
        return x.sum() + outs.sum()

    graph = trace_step(step, X, names=("x",), result_names=("y",))
    counted = Counter(operator.primitive for operator in graph.operators)
    assert counted["dot_general"] == counted["tanh"] == 4
    assert not {"jit", "pjit", "scan"} & set(counted)
    assert graph.flops == 4 * 2 * X.size * 8


def test_what_no_result_needs_is_left_out() -> None:
    def step(x: jax.Array) -> jax.Array:
        jnp.sin(x @ W)
        return x + 1

    graph = trace_step(step, X, names=("x",), result_names=("y",))
    assert [operator.primitive for operator in graph.operators] == ["add"]


@pytest.mark.parametrize("remat", [False, True])
def test_what_is_computed_again_is_marked(*, remat: bool) -> None:
    graph = gpt_graph(Size(), remat=remat)
    assert any(operator.remat for operator in graph.operators) == remat
    products = [operator for operator in graph.operators if operator.primitive == "dot_general"]
    # A layer has 6 products forward and 12 backward; table and head have 3 each, but for the
    # table's gradient of one-hot rows. Again are all but the last of a layer.
    assert len(products) == 2 * 18 + 5 + (2 * 5 if remat else 0)


def test_roles_are_told_from_what_becomes_of_arguments() -> None:
    graph = gpt_graph(Size(dtype="float16"))
    roles = roles_of(graph)
    assert {path.split(".")[1] for path in roles.parameters} == {"params"}
    assert {path.split(".")[1] for path in roles.optimizer} == {"adam", "master"}
    assert roles.batch == ("x", "y")
    assert len(roles.optimizer) == 3 * len(roles.parameters)


def test_examples_lie_along_one_dim() -> None:
    graph = gpt_graph(Size(batch=6))
    dims = batch_dims(graph)
    for operator in graph.operators:
        for result in operator.results:
            dim = dims[result]
            assert dim is None or graph.arrays[result].shape[dim] == 6
    assert all(dims[graph.arguments[path]] is None for path in roles_of(graph).parameters)


def test_names_are_as_many_as_arguments() -> None:
    with pytest.raises(PlanError, match=r"`names` has a name for each tree: there are 1 trees"):
        trace_step(lambda x: x, X, names=("x", "y"), result_names=("y",))


def test_a_step_of_nothing_is_a_graph_of_nothing() -> None:
    graph = trace_step(lambda x: x, X, names=("x",), result_names=("x",))
    assert graph.operators == ()
    assert graph.arguments == graph.results == {"x": 0}
