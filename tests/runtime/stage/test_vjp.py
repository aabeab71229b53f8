"""Residuals hold no weights and nothing twice, and give the gradients of an uncut vjp."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxpipe.runtime.stage.stage import Stage
from jaxpipe.runtime.stage.vjp import backward_from_residuals, forward_with_residuals
from jaxpipe.schedule import Remat
from tests.oracles.one_device import NUM_LAYERS, SEED, draw_tokens, tiny_gpt

pytestmark = pytest.mark.slow


def whole(remat: Remat) -> Stage:
    return Stage(
        model=tiny_gpt(tied=True), index=0, num_stages=1, layers=range(NUM_LAYERS), remat=remat
    )


def num_bytes(tree: object) -> int:
    return sum(leaf.nbytes for leaf in jax.tree.leaves(tree))


def test_weights_and_repeats_do_not_travel():
    def function(weights: dict[str, jax.Array], x: jax.Array) -> jax.Array:
        hidden = jnp.sin(x @ weights["first"])
        return (hidden @ weights["second"]) * hidden.sum()

    weights = {"first": jnp.ones((3, 4)), "second": jnp.ones((4, 5))}
    x = jnp.arange(6.0).reshape(2, 3)
    output, residuals = jax.jit(forward_with_residuals, static_argnums=0)(function, weights, x)
    shapes = [leaf.shape for leaf in jax.tree.leaves(residuals)]
    assert (3, 4) not in shapes
    assert (4, 5) not in shapes

    cotangent = jnp.ones_like(output)
    found = jax.jit(backward_from_residuals)(residuals, weights, cotangent)
    expected = jax.vjp(function, weights, x)[1](cotangent)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-6), found, expected)


@pytest.mark.parametrize("remat", Remat)
def test_rematerialisation_changes_memory_and_not_gradients(remat: Remat):
    stage, kept = whole(remat), whole(Remat.NONE)
    params = jax.jit(lambda: stage.init(seed=SEED))()
    tokens = jnp.asarray(draw_tokens(num_samples=2))

    def forward(stage: Stage):
        return jax.jit(
            lambda params: forward_with_residuals(
                lambda p: stage.apply(p, tokens[:, :-1], tokens[:, 1:], None), params
            )
        )(params)

    loss, residuals = forward(stage)
    (gradients,) = jax.jit(backward_from_residuals)(residuals, params, jnp.float32(1))
    of_kept = jax.grad(lambda p: kept.apply(p, tokens[:, :-1], tokens[:, 1:], None))
    expected = jax.jit(of_kept)(params)
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5), gradients, expected
    )
    assert loss == pytest.approx(float(forward(kept)[0]), rel=1e-6)


def test_policies_keep_less_and_less():
    tokens = jnp.asarray(draw_tokens(num_samples=2))
    sizes = []
    for remat in (Remat.NONE, Remat.DOTS, Remat.FULL):
        stage = whole(remat)
        params = jax.jit(lambda stage=stage: stage.init(seed=SEED))()
        _, residuals = jax.jit(
            lambda p, stage=stage: forward_with_residuals(
                lambda p: stage.apply(p, tokens[:, :-1], tokens[:, 1:], None), p
            )
        )(params)
        sizes.append(num_bytes(residuals))
    assert sizes[0] > sizes[1] > sizes[2]
