"""Where partial sums are reduced."""

import jax
import jax.numpy as jnp
import pytest

from jaxpipe.baselines.autoshard.spmd import NamedStep, shard_program
from jaxpipe.baselines.autoshard.strategy import MeshShape, Strategy, parse_choice, parse_sharding

A, B = jax.ShapeDtypeStruct((4, 8), jnp.float32), jax.ShapeDtypeStruct((8, 6), jnp.float32)
COLUMNS, ROWS = parse_sharding("RS0"), parse_sharding("S0R")


def choices(run: object, products: list[str], result: str = "RR") -> list[str]:
    """Return the choice of each operator of a step of two arguments split along a summed dim."""
    strategy = Strategy(
        name="sums",
        mesh=MeshShape(dp=2, op=1),
        arguments={"a": COLUMNS, "b": ROWS},
        results={"y": parse_sharding(result)},
        operators={place: parse_choice(text) for place, text in enumerate(products)},
    )
    step = NamedStep(run=run, names=("a", "b"), result_names=("y",))  # type: ignore[arg-type]
    return [str(each) for each in shard_program(step, (A, B), strategy).choices]


SUM = "RS0,S0R->RR +0"


def test_two_sums_that_are_added_are_reduced_once() -> None:
    found = choices(lambda a, b: a @ b + (2 * a) @ b, [SUM])
    assert [each.count("+") for each in found].count(1) == 1
    assert found[-1] == "RR,RR->RR +0"


def test_a_scatter_is_carried_to_the_dim_where_it_belongs() -> None:
    found = choices(lambda a, b: (a @ b).T, ["RS0,S0R->S0R +0>0"], result="RS0")
    assert found == ["RS0,S0R->RR", "RR->RS0 +0>1"]


def test_what_is_reduced_and_then_sliced_is_scattered() -> None:
    negated = "S0R->S0R"
    found = choices(lambda a, b: -(a @ b), [SUM, negated], result="S0R")
    assert found == ["RS0,S0R->RR", "RR->S0R +0>0"]


def test_less_is_reduced_after_a_sum() -> None:
    assert choices(lambda a, b: (a @ b).sum(axis=0), [SUM], result="R")[-1] == "RR->R +0"


@pytest.mark.parametrize(
    "run",
    [
        lambda a, b: jnp.tanh(a @ b),
        lambda a, b: (a @ b) * (a @ b),
        lambda a, b: a @ b + 1,
        lambda a, b: jnp.broadcast_to(a @ b, (3, 4, 6)),
        lambda a, b: (a @ b).astype(jnp.int32),
    ],
    ids=["not linear", "of two sums", "of one sum", "more bytes", "rounded"],
)
def test_what_is_not_linear_or_larger_reads_the_sum(run: object) -> None:
    result = "RRR" if "broadcast" in str(jax.make_jaxpr(run)(A, B)) else "RR"  # type: ignore[arg-type]
    for each in choices(run, [SUM], result=result)[:1]:
        assert each == SUM
