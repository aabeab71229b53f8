"""The step that is sharded has the loss of the whole model, also where layers differ."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from jaxpipe.baselines.autoshard.spmd import initial_state, train_step
from jaxpipe.models.llama import Llama
from tests.oracles import whole_model
from tests.oracles.llamas import GEMMA3_RAGGED

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("remat", [False, True])
def test_a_model_of_unlike_layers_has_its_loss(remat: bool) -> None:
    model, optimizer = Llama(GEMMA3_RAGGED), optax.sgd(0.1)
    tokens = whole_model.random_tokens(model, 2, 9)
    inputs, targets = tokens[:, :-1], tokens[:, 1:]

    @jax.jit
    def both(inputs: jax.Array, targets: jax.Array) -> tuple[jax.Array, jax.Array]:
        state = initial_state(model, optimizer, jax.random.key(0), dtype="float32")
        _, loss = train_step(model, optimizer, remat=remat)(state, inputs, targets)
        return loss, whole_model.loss(model, whole_model.init(model), inputs, targets)

    loss, summed = both(inputs, targets)
    assert jnp.ndim(loss) == 0
    np.testing.assert_allclose(loss, summed / targets.size, rtol=1e-6)
