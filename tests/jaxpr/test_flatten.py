"""A flat jaxpr computes what the function computes, and holds no call."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxpipe.jaxpr import FlatJaxpr, compute, flatten, live, read, run_scan, varying
from jaxpipe.jaxpr.flatten import BARRIER

X = jnp.linspace(-1.0, 1.0, 6).reshape(2, 3)
TABLE = np.arange(6.0, dtype=np.float32).reshape(3, 2)


def scanned(x: jax.Array) -> Any:
    def step(carry: jax.Array, each: jax.Array) -> Any:
        return jax.jit(jnp.tanh)(carry @ TABLE).sum() * each + carry, jax.nn.relu(carry)

    return jax.lax.scan(step, x[0], x, reverse=True)


def scanned_over_nothing(x: jax.Array) -> Any:
    return jax.lax.scan(lambda c, e: (c + e, (e * 2, c.sum() > 0)), x[0], x[:0])


def nested(x: jax.Array) -> Any:
    def outer(carry: jax.Array, each: jax.Array) -> Any:
        inner = jax.checkpoint(lambda c: jax.lax.scan(lambda c, e: (c * e, c), c, each)[0])
        return inner(carry), None

    return jax.jit(lambda x: jax.lax.scan(outer, x.sum(), x)[0])(x)


def branches(x: jax.Array) -> Any:
    return jax.lax.cond(x.sum() > 0, jnp.sin, jnp.cos, x), x, 3.0


def gradient(x: jax.Array) -> Any:
    return jax.grad(lambda x: jax.checkpoint(lambda x: jax.nn.silu(x @ TABLE))(x).sum())(x)


SCANS = [scanned, scanned_over_nothing, nested]
FUNCTIONS = [*SCANS, branches, gradient]


def evaluate(flat: FlatJaxpr, *arguments: Any) -> list[Any]:
    values: dict[Any, Any] = dict(zip(flat.arguments, arguments, strict=True))
    for equation in flat.equations:
        operands = [read(values, each) for each in equation.operands]
        if equation.source is None:
            results = operands
        elif equation.scan is None:
            results = compute(equation, operands)
        else:
            results = _scanned(equation.scan, operands)
        values.update(zip(equation.results, results, strict=True))
    return [read(values, each) for each in flat.results]


def _scanned(scan: Any, operands: list[Any]) -> list[Any]:
    first = scan.num_consts + scan.num_carry

    def step(carry: Any, xs: Any) -> Any:
        results = evaluate(scan.body, *operands[: scan.num_consts], *carry, *xs)
        return results[: scan.num_carry], results[scan.num_carry :]

    carry, ys = run_scan(scan, step, operands[scan.num_consts : first], operands[first:])
    return [*carry, *ys]


@pytest.mark.parametrize("barriers", [False, True])
@pytest.mark.parametrize("unroll", [False, True])
@pytest.mark.parametrize("function", FUNCTIONS)
def test_a_flat_function_computes_the_same(function: Any, unroll: bool, barriers: bool) -> None:
    flat = flatten(jax.make_jaxpr(function)(X), unroll=unroll, barriers=barriers)
    names = {equation.primitive for equation in flat.equations}
    assert not names & {"jit", "pjit", "checkpoint", "remat2", "custom_jvp_call"}
    assert ("scan" in names) == (not unroll and function in SCANS)
    for each in (flat, live(flat)):
        found = evaluate(each, X)
        for a, b in zip(found, jax.tree.leaves(function(X)), strict=True):
            assert (jnp.shape(a), jnp.result_type(a)) == (jnp.shape(b), jnp.result_type(b))
            np.testing.assert_allclose(a, b, rtol=1e-6)


def test_a_barrier_stands_before_what_is_recomputed() -> None:
    flat = flatten(jax.make_jaxpr(gradient)(X), unroll=True, barriers=True)
    (barrier,) = [each for each in flat.equations if each.source is None]
    assert barrier.primitive == BARRIER
    assert not barrier.remat
    after = flat.equations[flat.equations.index(barrier) + 1 :]
    assert after[0].remat
    read_later = {each for equation in after for each in equation.operands}
    (kept,) = [each for each in live(flat).equations if each.source is None]
    assert set(kept.results) == set(barrier.results) & read_later


def test_what_no_result_needs_is_not_live() -> None:
    def function(x: jax.Array) -> jax.Array:
        jnp.sin(x @ TABLE)
        return x + 1

    flat = flatten(jax.make_jaxpr(function)(X), unroll=True)
    assert len(flat.equations) > 1
    assert [each.primitive for each in live(flat).equations] == ["add"]


def test_constants_do_not_vary() -> None:
    def function(x: jax.Array) -> Any:
        return x * jnp.arange(3.0).sum(), jnp.arange(3.0) + 1

    flat = flatten(jax.make_jaxpr(function)(X), unroll=True)
    first, second = flat.results
    assert first in varying(flat)
    assert second not in varying(flat)
