"""A whole model on one device, as the stages of a pipeline would run it together."""

from dataclasses import replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from jaxpipe.models.gpt_config import GptConfig
from jaxpipe.runtime.stage.model import Model, model_of_layer

SMALL = GptConfig(num_layers=3, dim=24, num_heads=3, sequence=10, vocabulary=17)
UNTIED = replace(SMALL, tied=False)


@partial(jax.jit, static_argnums=(0, 1))
def init(gpt: Model, seed: int = 0) -> dict[str, Any]:
    """Return the fresh parameters of the whole model."""
    layers = range(gpt.num_layers)
    return gpt.init(jax.random.key(seed), layers=layers, embed=True, head=True)


def disturbed(gpt: Model) -> dict[str, Any]:
    """Return parameters with no leaf that is all zeros or ones, so that each one matters."""
    source = np.random.default_rng(0)
    return jax.tree.map(lambda a: a + 0.2 * source.normal(size=a.shape).astype(a.dtype), init(gpt))


@partial(jax.jit, static_argnums=0)
def logits(gpt: Model, params: dict[str, Any], tokens: Array, key: Array | None = None) -> Array:
    """Return the logits; the embedding's key and each layer's are folded from `key`."""
    return gpt.head(params, _hidden(gpt, params, tokens, key))


@partial(jax.jit, static_argnums=0)
def loss(gpt: Model, params: dict[str, Any], tokens: Array, targets: Array) -> Array:
    """Return the summed loss without dropout."""
    return gpt.loss(params, _hidden(gpt, params, tokens, None), targets)


def _hidden(gpt: Model, params: dict[str, Any], tokens: Array, key: Array | None) -> Array:
    keys = None
    if key is not None:
        keys = jax.vmap(partial(jax.random.fold_in, key))(jnp.arange(gpt.num_layers + 1))
    x = gpt.embed(params, tokens, None if keys is None else keys[-1])
    layers = (params["blocks"], None if keys is None else keys[:-1])
    if getattr(getattr(gpt, "config", None), "full_layers", ()):  # one by one: layers differ
        for number in range(gpt.num_layers):
            layer = jax.tree.map(lambda leaf, n=number: leaf[n], layers)
            x = _applied(model_of_layer(gpt, number), x, layer)
        return x
    return jax.lax.scan(lambda x, layer: (_applied(gpt, x, layer), None), x, layers)[0]


def _applied(gpt: Model, x: Array, layer: tuple[dict[str, Any], Array | None]) -> Array:
    output = gpt.block(layer[0], x, layer[1])
    return output[0] if isinstance(output, tuple) else output


def random_tokens(gpt: Model, batch: int, seq: int, seed: int = 0) -> Array:
    """Return random tokens (batch, seq)."""
    return jax.random.randint(jax.random.key(seed), (batch, seq), 0, gpt.vocabulary, jnp.int32)
