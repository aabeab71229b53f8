"""Steps to shard: a transformer with an optimizer, and products in a chain."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from jaxpipe.baselines.autoshard.graph import Graph, trace_step

Tree = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """A GPT and its batch; by default so small that it runs."""

    num_layers: int = 2
    dim: int = 16
    num_heads: int = 4
    sequence: int = 8
    vocabulary: int = 32
    batch: int = 8
    dtype: str = "float32"


def gpt_graph(size: Size, *, remat: bool = False) -> Graph:
    """Return the graph of a step of AdamW; half precision keeps a master copy in float32."""
    params = _shapes(size, size.dtype)
    state: Tree = {"params": params, "adam": {k: _shapes(size, "float32") for k in ("mu", "nu")}}
    if size.dtype == "float16":
        state["master"] = _shapes(size, "float32")
    tokens = jax.ShapeDtypeStruct((size.batch, size.sequence), jnp.int32)
    step = _step(size, remat=remat)
    return trace_step(
        step, state, tokens, tokens, names=("state", "x", "y"), result_names=("state",)
    )


def _shapes(size: Size, dtype: str) -> Tree:
    dim = size.dim
    block = {
        "norm1": {"scale": (dim,), "bias": (dim,)},
        "qkv": {"kernel": (dim, 3 * dim), "bias": (3 * dim,)},
        "project": {"kernel": (dim, dim), "bias": (dim,)},
        "norm2": {"scale": (dim,), "bias": (dim,)},
        "up": {"kernel": (dim, 4 * dim), "bias": (4 * dim,)},
        "down": {"kernel": (4 * dim, dim), "bias": (dim,)},
    }
    tree = {
        "embed": {"tokens": (size.vocabulary, dim), "positions": (size.sequence, dim)},
        "blocks": {str(layer): block for layer in range(size.num_layers)},
        "head": {"kernel": (dim, size.vocabulary)},
    }
    return jax.tree.map(
        lambda shape: jax.ShapeDtypeStruct(shape, dtype),
        tree,
        is_leaf=lambda leaf: isinstance(leaf, tuple),
    )


def _step(size: Size, *, remat: bool) -> Callable[..., Any]:
    def loss(params: Tree, x: jax.Array, y: jax.Array) -> jax.Array:
        one_hot = jax.nn.one_hot(x, size.vocabulary, dtype=size.dtype)
        hidden = one_hot @ params["embed"]["tokens"] + params["embed"]["positions"]
        block = jax.checkpoint(_block, static_argnums=2) if remat else _block
        for layer in range(size.num_layers):
            hidden = block(params["blocks"][str(layer)], hidden, size.num_heads)
        logits = (hidden @ params["head"]["kernel"]).astype("float32")
        right = jax.nn.one_hot(y, size.vocabulary) * jax.nn.log_softmax(logits)
        return -jnp.sum(right) / (size.batch * size.sequence)

    def step(state: Tree, x: jax.Array, y: jax.Array) -> Tree:
        grads = jax.grad(loss)(state["params"], x, y)
        grads = jax.tree.map(lambda g: g.astype("float32"), grads)
        old = state.get("master", state["params"])
        mu = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, state["adam"]["mu"], grads)
        nu = jax.tree.map(lambda v, g: 0.95 * v + 0.05 * g * g, state["adam"]["nu"], grads)
        new = jax.tree.map(
            lambda p, m, v: p - 1e-3 * (m / (jnp.sqrt(v) + 1e-8) + 0.1 * p), old, mu, nu
        )
        params = jax.tree.map(lambda p: p.astype(size.dtype), new)
        master = {"master": new} if "master" in state else {}
        return {"params": params, "adam": {"mu": mu, "nu": nu}, **master}

    return step


def _norm(params: Tree, x: jax.Array) -> jax.Array:
    wide = x.astype("float32")
    centred = wide - wide.mean(-1, keepdims=True)
    normed = centred * jax.lax.rsqrt((centred * centred).mean(-1, keepdims=True) + 1e-5)
    return normed.astype(x.dtype) * params["scale"] + params["bias"]


def _dense(params: Tree, x: jax.Array) -> jax.Array:
    return x @ params["kernel"] + params["bias"]


def _block(params: Tree, x: jax.Array, num_heads: int) -> jax.Array:
    batch, sequence, dim = x.shape
    qkv = _dense(params["qkv"], _norm(params["norm1"], x))
    heads = qkv.reshape(batch, sequence, num_heads, 3, dim // num_heads)
    q, k, v = (heads[:, :, :, each] for each in range(3))
    scores = jnp.einsum("bqhd,bkhd->bhqk", q, k) / (dim // num_heads) ** 0.5
    mask = jnp.tril(jnp.ones((sequence, sequence), dtype=bool))
    weights = jax.nn.softmax(jnp.where(mask, scores, -1e4).astype("float32")).astype(x.dtype)
    mixed = jnp.einsum("bhqk,bkhd->bqhd", weights, v).reshape(batch, sequence, dim)
    x = x + _dense(params["project"], mixed)
    up = jax.nn.gelu(_dense(params["up"], _norm(params["norm2"], x)))
    return x + _dense(params["down"], up)
