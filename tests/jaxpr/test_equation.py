"""Parameters of equations are found by name, and one that is missing is an error with a fix."""

from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax.extend.core import JaxprEqn

from jaxpipe.errors import ConfigError
from jaxpipe.jaxpr import TESTED
from jaxpipe.jaxpr.equation import called, recomputes, scan_of

X = jnp.arange(4.0)


def equations(function: Any) -> list[JaxprEqn]:
    return jax.make_jaxpr(function)(X).eqns


@jax.custom_vjp
def doubled(x: jax.Array) -> jax.Array:
    return 2 * x


doubled.defvjp(lambda x: (2 * x, None), lambda _, g: (2 * g,))


@pytest.mark.parametrize(
    "call",
    [jax.jit(jnp.sin), jax.checkpoint(jnp.sin), doubled, jax.nn.relu],
    ids=["jit", "checkpoint", "custom_vjp", "custom_jvp"],
)
def test_what_a_call_applies_is_found(call: Any) -> None:
    (equation,) = equations(call)
    inner = called(equation)
    assert inner is not None
    assert len(inner.in_avals) == len(equation.invars)
    assert len(inner.out_avals) == len(equation.outvars)


@pytest.mark.parametrize(
    "operator",
    [
        jnp.sin,
        lambda x: jax.lax.while_loop(lambda c: c.sum() < 9, lambda c: c + 1, x),
        lambda x: jax.lax.cond(x[0] > 0, jnp.sin, jnp.cos, x),
        lambda x: jax.lax.scan(lambda c, each: (c + each, c), 0.0, x),
    ],
    ids=["operator", "while", "cond", "scan"],
)
def test_loops_and_conditions_are_no_calls(operator: Any) -> None:
    assert called(equations(operator)[-1]) is None


def test_the_operands_of_a_scan_are_counted() -> None:
    def scanned(x: jax.Array) -> Any:
        def step(carry: Any, each: Any) -> Any:
            return (carry[0] + each, carry[1] * x), carry[0] - each

        return jax.lax.scan(step, (0.0, x), X, reverse=True, unroll=2)

    scan = scan_of(equations(scanned)[-1])
    assert scan is not None
    assert (scan.num_consts, scan.num_carry, scan.length) == (1, 2, 4)
    assert (scan.reverse, scan.unroll) == (True, 2)
    assert len(scan.body.in_avals) == 1 + 2 + 1
    assert len(scan.body.out_avals) == 2 + 1


def test_only_a_backward_recomputes() -> None:
    def loss(x: jax.Array) -> jax.Array:
        return jax.checkpoint(jnp.sin)(x).sum()

    assert not any(map(recomputes, equations(loss)))
    assert sum(map(recomputes, equations(jax.grad(loss)))) == 1


def test_an_unknown_version_of_jax_is_named() -> None:
    *_, scan = equations(lambda x: jax.lax.scan(lambda c, each: (c + each, c), 0.0, x))
    without = scan.replace(params={"body": None, "length": 4})
    match = rf"`scan` of jax {jax.__version__} has no parameter `ft_in`, only "
    with pytest.raises(ConfigError, match=match + f"body, length: .* {TESTED}; install"):
        scan_of(without)
