"""The parameters of a pair: drawn layer by layer, and split over devices by their experts."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxpipe.models.gpt import Gpt
from jaxpipe.models.gpt_config import GptConfig
from jaxpipe.models.moe.routing import Dispatch
from tests.oracles import whole_model as uncut

CONFIG = GptConfig(
    num_layers=3, dim=8, num_heads=2, sequence=6, vocabulary=17, experts=4, tied=False
)


def test_every_split_names_a_parameter_and_a_dim_of_it() -> None:
    gpt = Gpt(CONFIG)
    shapes = jax.eval_shape(partial(uncut.init, gpt))
    leaves = {
        ".".join(key.key for key in path): leaf.shape
        for path, leaf in jax.tree.flatten_with_path(shapes)[0]
    }
    assert set(gpt.split) <= set(leaves)
    assert leaves["blocks.sparse.moe.up"][gpt.split["blocks.sparse.moe.up"]] == 4
    assert leaves["blocks.sparse.moe.down"][gpt.split["blocks.sparse.moe.down"]] == 4
    split = {name for name in leaves if name in gpt.split}
    assert {name for name in leaves if ".kernel" in name and "moe" not in name} <= split


@pytest.mark.slow
def test_a_layer_does_not_depend_on_the_partition() -> None:
    gpt = Gpt(CONFIG)
    whole = uncut.init(gpt)["blocks"]
    last = gpt.init(jax.random.key(0), layers=range(2, 3), embed=False, head=False)["blocks"]
    jax.tree.map(lambda a, b: np.testing.assert_array_equal(a[2:], b), whole, last)


@pytest.mark.parametrize("dispatch", Dispatch)
def test_one_expert_per_token_is_causal(dispatch: Dispatch) -> None:
    config = GptConfig(
        num_layers=1,
        dim=8,
        num_heads=2,
        sequence=6,
        vocabulary=17,
        experts=2,
        capacity_factor=1.0,
        dispatch=dispatch,
    )
    gpt = Gpt(config)
    params, tokens = uncut.disturbed(gpt), uncut.random_tokens(gpt, 4, 6)
    other = tokens.at[:, 3:].set((tokens[:, 3:] + 5) % 17)
    same = uncut.logits(gpt, params, tokens)[:, :3], uncut.logits(gpt, params, other)[:, :3]
    np.testing.assert_allclose(*same, rtol=1e-5, atol=1e-6)
    changed = uncut.logits(gpt, params, tokens)[:, 3:] - uncut.logits(gpt, params, other)[:, 3:]
    assert float(jnp.abs(changed).max()) > 0.1
