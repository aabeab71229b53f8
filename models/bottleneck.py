"""Bottlenecks: places of a model after which `rank` numbers of a token are kept, in place of `dim`.

A plan that cuts the layers there sends `[batch, seq, rank]`, forward and backward::

    layer ─► x ─► down ─► [batch, seq, rank] ─► up ─► + ─► layer
             before the cut                  after it ▲
                                                      tables of the token, of the token before it
                                                      and of the position

Tokens are known on both sides, so what they say is added behind the cut: the projections carry the
rest. The tables are parameters of the stage that adds them, unlike the embedding, so they need no
exchange between stages.

The parameters are a part of their own, beside the layers, one for each bottleneck, by the number of
layers before it. "down" belongs to the stage of the layer before it, the others to that of the
layer behind::

    {"bottlenecks": {"4": {"down": (dim, rank),
                           "up": (rank, dim),
                           "tokens", "previous": (vocabulary, dim),
                           "positions": (sequence, dim)}}}

At the start "down" is orthonormal and "up" its transpose. The projections are linear, and followed
by the norm of a layer.

Source: Aboudib et al. 2026, "ResBM: Residual Bottleneck Models for Low-Bandwidth Pipeline
Parallelism" (arXiv 2604.11947): a trained pair of projections at the cut; Ramasinghe et al. 2025,
"Protocol Models" (arXiv 2506.01260), section 5: token embeddings are added on both sides. Tables of
the receiving stage, and that of the previous token, are from neither
(`experiments/low_rank` compares them).
"""

from collections.abc import Mapping
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, Key

from jaxpipe.models.gpt_config import GptConfig

_KEY = 3
"""Folded into the key; the parts of a model fold in smaller numbers."""


def draw_bottlenecks(
    config: GptConfig, key: Key[Array, ""], *, layers: range, std: float
) -> dict[str, dict[str, Array]]:
    """Return fresh parameters, in `param_dtype`, of the bottlenecks beside some layers.

    Those of a bottleneck depend on the key and on the number of layers before it alone. `std` is
    the standard deviation of the tables.
    """
    drawn: dict[str, dict[str, Array]] = {}
    for after, rank in config.bottlenecks:
        sides = {"down": after - 1 in layers, "up": after in layers}
        if any(sides.values()):
            key_of_part = jax.random.fold_in(jax.random.fold_in(key, _KEY), after)
            part = _draw(config, key_of_part, rank, std)
            names = {name for name in part if sides["down" if name == "down" else "up"]}
            drawn[str(after)] = {name: part[name] for name in sorted(names)}
    return drawn


@partial(jax.jit, static_argnums=(0, 2, 3))
def _draw(config: GptConfig, key: Key[Array, ""], rank: int, std: float) -> dict[str, Array]:
    of_basis, *of_tables = jax.random.split(key, 4)
    basis, _ = jnp.linalg.qr(jax.random.normal(of_basis, (config.dim, rank)))
    rows = {
        "tokens": config.vocabulary,
        "previous": config.vocabulary,
        "positions": config.sequence,
    }
    tables = {
        name: std * jax.random.normal(key_of_table, (count, config.dim))
        for (name, count), key_of_table in zip(rows.items(), of_tables, strict=True)
    }
    drawn = {"down": basis, "up": basis.T, **tables}
    return {name: leaf.astype(config.param_dtype) for name, leaf in drawn.items()}


def narrow(
    part: Mapping[str, Any], x: Float[Array, "batch seq dim"]
) -> Float[Array, "batch seq rank"]:
    """Return what a stage sends of the output of its last layer."""
    with jax.named_scope("narrow"):
        return x @ part["down"].astype(x.dtype)


def widen(
    part: Mapping[str, Any], x: Float[Array, "batch seq rank"], tokens: Int[Array, "batch seq"]
) -> Float[Array, "batch seq dim"]:
    """Return the input of the layer behind a bottleneck; the first token has none before it."""
    with jax.named_scope("widen"):
        before = jnp.roll(part["previous"][tokens], 1, axis=1).at[:, 0].set(0)
        known = part["tokens"][tokens] + before + part["positions"][: tokens.shape[1]]
        return x @ part["up"].astype(x.dtype) + known.astype(x.dtype)
