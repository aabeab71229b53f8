"""Layers that are scanned and layers that are unrolled compute the same."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxpipe.runtime.config import Loop
from jaxpipe.runtime.stage.stage import Stage
from jaxpipe.schedule import Remat
from tests.oracles.one_device import NUM_LAYERS, SEED, draw_tokens, tiny_gpt

pytestmark = pytest.mark.slow


def stage(*, loop: Loop, index: int = 0, cut: tuple[int, ...] = (NUM_LAYERS,)) -> Stage:
    return Stage(
        model=tiny_gpt(tied=True),
        index=index,
        num_stages=len(cut),
        layers=range(sum(cut[:index]), sum(cut[: index + 1])),
        loop=loop,
    )


@pytest.mark.parametrize("loop", Loop)
@pytest.mark.parametrize(("index", "cut"), [(0, (5,)), (0, (1, 4)), (1, (2, 3))])
def test_stacking_undoes_spreading(loop: Loop, index: int, cut: tuple[int, ...]) -> None:
    one = stage(loop=loop, index=index, cut=cut)
    params = jax.jit(lambda: one.init(seed=SEED))()
    jax.tree.map(np.testing.assert_array_equal, one.stack(one.spread(params)), params)


def test_unrolled_layers_have_a_tree_each_and_scanned_ones_share_theirs() -> None:
    params = jax.jit(lambda: stage(loop=Loop.SCAN).init(seed=SEED))()
    assert stage(loop=Loop.SCAN).spread(params) is params
    assert len(stage(loop=Loop.UNROLLED).spread(params)["blocks"]) == NUM_LAYERS


@pytest.mark.parametrize(("remat", "dropout"), [(Remat.NONE, 0.2), (Remat.DOTS, 0.0)])
def test_scanned_and_unrolled_layers_agree(remat: Remat, dropout: float) -> None:
    tokens = jnp.asarray(draw_tokens(num_samples=2))
    found = {}
    for loop in Loop:
        one = Stage(
            model=tiny_gpt(tied=True, dropout=dropout),
            index=0,
            num_stages=1,
            layers=range(2),
            remat=remat,
            loop=loop,
        )

        def loss(params: dict, one: Stage = one) -> jax.Array:
            output = one.apply(params, tokens[:, :-1], tokens[:, 1:], jax.random.key(1))
            assert not isinstance(output, tuple)
            return output

        params = jax.jit(lambda one=one: one.spread(one.init(seed=SEED)))()
        value, gradients = jax.jit(jax.value_and_grad(loss))(params)
        found[loop] = (value, one.stack(gradients))
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5), *found.values()
    )
