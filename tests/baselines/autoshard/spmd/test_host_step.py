"""A step that the host runs segment by segment, over a transport, computes what one device does."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxpipe.baselines.autoshard.spmd import (
    HostStep,
    NamedStep,
    accumulated,
    local_piece,
    run_hosts,
    schedule_of,
    trace_host_program,
)
from jaxpipe.baselines.autoshard.strategy import MeshShape, Strategy, parse_choice, parse_sharding
from jaxpipe.comm import Transport, run_ranks
from jaxpipe.errors import PlanError

MESH = MeshShape(dp=2, op=1)
ARGUMENTS = (
    np.random.default_rng(0).normal(size=(6, 4)).astype(np.float32),
    np.random.default_rng(1).normal(size=(8, 6)).astype(np.float32),
)


def run(up: jax.Array, x: jax.Array) -> jax.Array:
    """A step of gradient descent: the loss is a sum over examples."""
    gradient = jax.grad(lambda up: jnp.sum(jnp.tanh(x @ up) ** 2))(up)
    return up - 0.1 * accumulated(gradient)


def step(*, duplex: bool) -> NamedStep:
    return NamedStep(
        run=run,
        names=("up", "x"),
        result_names=("up",),
        microbatches=2 if duplex else 1,
        duplex=duplex,
    )


def strategy(up: str, product: str) -> Strategy:
    return Strategy(
        name="by hand",
        mesh=MESH,
        arguments={"up": parse_sharding(up), "x": parse_sharding("S0R")},
        results={"up": parse_sharding(up)},
        operators={0: parse_choice(product)},
    )


def on_two_ranks(strategy: Strategy, *, duplex: bool) -> list[Any]:
    def work(transport: Transport) -> Any:
        program = trace_host_program(step(duplex=duplex), ARGUMENTS, strategy, rank=transport.rank)
        order = schedule_of(
            program, [1.0] * len(program.segments), [1.0] * len(program.collectives)
        )
        pieces = [
            local_piece(array, sharding, MESH, rank=transport.rank)
            for array, sharding in zip(ARGUMENTS, strategy.arguments.values(), strict=True)
        ]
        host = HostStep(program=program, transport=transport, schedule=order, timeout_s=60.0)
        kinds = [each.primitive for each in program.collectives]
        return kinds, np.asarray(host.run(pieces)[0])

    return run_ranks(2, work)


@pytest.mark.parametrize("duplex", [False, True])
@pytest.mark.parametrize(
    ("up", "product", "kinds"),
    [
        ("RR", "S0R,RR->S0R", {"psum"}),
        # Sharded parameters: the gradient is scattered, not all-reduced and sliced.
        ("S0R", "S0R,RR->S0R", {"all_gather", "reduce_scatter"}),
        ("RS0", "RR,RS0->RS0", {"all_gather"}),
        ("RR", "RS0,S0R->S0R +0>0", {"all_to_all", "reduce_scatter", "psum", "all_gather"}),
    ],
)
def test_any_strategy_is_the_step_of_one_device(
    up: str, product: str, kinds: set[str], *, duplex: bool
) -> None:
    given = strategy(up, product)
    expected = run(*map(jnp.asarray, ARGUMENTS))
    for rank, (found, got) in enumerate(on_two_ranks(given, duplex=duplex)):
        assert set(found) <= kinds
        assert found
        wanted = local_piece(expected, given.results["up"], MESH, rank=rank)
        np.testing.assert_allclose(got, wanted, atol=1e-5)


def test_steps_follow_each_other_on_all_hosts() -> None:
    given = strategy("RR", "RS0,S0R->S0R +0>0")
    ran = run_hosts(step(duplex=True), ARGUMENTS, given, num_steps=2)
    expected = jnp.asarray(ARGUMENTS[0])
    for state in ran.states:
        expected = run(expected, jnp.asarray(ARGUMENTS[1]))
        np.testing.assert_allclose(state, expected, atol=1e-4)
    assert len(ran.states) == 2
    assert ran.step_s > 0


def test_the_halves_of_a_duplex_take_turns() -> None:
    program = trace_host_program(
        step(duplex=True), ARGUMENTS, strategy("RR", "RS0,S0R->S0R +0>0"), rank=0
    )
    serial = trace_host_program(
        step(duplex=False), ARGUMENTS, strategy("RR", "RS0,S0R->S0R +0>0"), rank=0
    )
    halved, whole = (
        schedule_of(
            each,
            [size / len(each.segments)] * len(each.segments),
            [size / len(each.collectives)] * len(each.collectives),
        )
        for each, size in ((program, 1.0), (serial, 1.0))
    )
    assert halved.seconds < whole.seconds


def test_two_axes_are_refused() -> None:
    mesh = MeshShape(dp=2, op=2)
    given = Strategy(
        name="by hand",
        mesh=mesh,
        arguments={"up": parse_sharding("RS1"), "x": parse_sharding("S0R")},
        results={"up": parse_sharding("RS1")},
    )
    with pytest.raises(PlanError, match=r"`dp` .2. x `op` .2.: the host runs only"):
        trace_host_program(step(duplex=False), ARGUMENTS, given, rank=0)
