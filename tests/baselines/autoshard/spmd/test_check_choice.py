"""A strategy of another step is refused before JAX sees it."""

import jax
import jax.numpy as jnp
import pytest

from jaxpipe.baselines.autoshard.graph import trace_step
from jaxpipe.baselines.autoshard.intra_op import Machine, find_strategy
from jaxpipe.baselines.autoshard.spmd import NamedStep, shard_program
from jaxpipe.baselines.autoshard.strategy import MeshShape, Strategy, parse_choice, parse_sharding
from jaxpipe.errors import PlanError

X, UP = jax.ShapeDtypeStruct((8, 4), jnp.float32), jax.ShapeDtypeStruct((4, 2), jnp.float32)
MESH = MeshShape(dp=2, op=2)


def product(x: jax.Array, up: jax.Array) -> jax.Array:
    return jnp.tanh(x @ up)  # 0: dot_general, 1: tanh


STEP = NamedStep(run=product, names=("x", "up"), result_names=("y",))


def strategy(operators: dict[int, str], *, x: str = "RR") -> Strategy:
    return Strategy(
        name="by hand",
        mesh=MESH,
        arguments={"x": parse_sharding(x), "up": parse_sharding("RR")},
        results={"y": parse_sharding("RR")},
        operators={index: parse_choice(text) for index, text in operators.items()},
    )


@pytest.mark.parametrize(
    "text",
    [
        "RR,RR->RR",
        "S0R,RS1->S0S1",
        "RS1,S1R->RR +1",
        "RS01,S01R->RR +01",
        "RS01,S01R->S1R +1>0 +0",
        "RS01,S01R->S10R +10>0",
        "S0S1,S1R->S01R +1>0",
    ],
)
def test_what_fits_is_taken_as_it_is(text: str) -> None:
    given = strategy({0: text})
    assert shard_program(STEP, (X, UP), given).choices[0] == given.operators[0]


@pytest.mark.parametrize(
    ("index", "text", "words"),
    [
        (0, "RS1,S1R->RR +1>7", "a reduce-scatter ends in a dim of the only result"),
        (0, "RS1,S1R->RR +1>0", "a reduce-scatter ends in a dim of the only result"),
        (0, "RS1,S1R->RR", "partial along op, and reduced along no axis"),
        (0, "RR,RR->RR +1", "partial along no axis, and reduced along op"),
        (0, "RS1,S1R->RR +1 +1", "partial along op, and reduced along op, op"),
        (0, "RS1,RR->RR +1", "RR splits a dim otherwise than another array"),
        (0, "S0R,RR->RR", "RR splits a dim otherwise"),
        (0, "RR->RR", "the choice has 1 operands and 1 results"),
        (0, "RR,RR->RR,RR", "the choice has 2 operands and 2 results"),
        (0, "R,RR->RR", r"R does not divide \(8, 4\) on 2 x 2 devices"),
        (0, "RR,RS01->RS01", r"RS01 does not divide \(4, 2\) on 2 x 2 devices"),
        (1, "S0R->RR", "splits a dim otherwise"),
        (2, "RR->RR", "`operators.2` is not in this step, which has 2 operators, from 0"),
    ],
)
def test_what_does_not_fit_is_refused_by_name(index: int, text: str, words: str) -> None:
    with pytest.raises(PlanError, match=words) as caught:
        shard_program(STEP, (X, UP), strategy({index: text}))
    assert f"`operators.{index}`" in str(caught.value)


def test_an_argument_that_does_not_divide_is_refused_by_name() -> None:
    uneven = jax.ShapeDtypeStruct((7, 4), jnp.float32)
    with pytest.raises(
        PlanError, match=r"`x`, of shape \(7, 4\), must .* sharding, S0R on 2 x 2 devices"
    ):
        shard_program(STEP, (uneven, UP), strategy({}, x="S0R"))


def test_all_choices_of_a_search_fit() -> None:
    graph = trace_step(product, X, UP, names=("x", "up"), result_names=("y",))
    found = find_strategy(graph, MESH, Machine(flops_per_s=1e9)).priced.strategy
    assert shard_program(STEP, (X, UP), found).choices == tuple(found.operators.values())
