"""Flax modules: what those of all families share, and how parameters are drawn and merged."""

import math
from collections.abc import Callable
from functools import lru_cache, partial
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
from flax import nnx
from jax.sharding import PartitionSpec
from jaxtyping import Array, Float, Int, Key

from jaxpipe.models.kernels.accumulation import accumulation_dtype
from jaxpipe.models.kernels.cross_entropy import capped, cross_entropy
from jaxpipe.models.transformer import INIT_STD, Hidden, Parameters, Part

_Result = TypeVar("_Result")


class Head(nnx.Module):
    """A norm, then the logits: products with the tied embedding, or with a kernel of its own.

    Args:
        norm: the norm over the width.
        kernel: a row for each token or class; None if the embedding is tied.
        logits_bytes: memory that the logits may take in training [bytes].
        softcap: soft bound of the logits; 0 for none.
        labels: whether it reads the first position of a sequence alone, which has classes.
    """

    def __init__(
        self,
        norm: Callable[[Array], Array],
        kernel: nnx.Param[Array] | None,
        *,
        logits_bytes: int,
        softcap: float = 0.0,
        labels: bool = False,
    ) -> None:
        self.norm = norm
        self.logits_bytes = logits_bytes
        self.softcap = softcap
        self.labels = labels
        if kernel is not None:
            self.kernel = kernel

    def __call__(
        self, x: Hidden, tokens: Float[Array, "vocabulary dim"] | None
    ) -> Float[Array, "batch seq vocabulary"] | Float[Array, "batch classes"]:
        """Return the logits in float32; `tokens` is the embedding's table, None if not tied."""
        x, rows = self._operands(x, tokens)
        wide = accumulation_dtype(x.dtype)
        logits = jnp.einsum("...d,vd->...v", x, rows, preferred_element_type=wide)
        return capped(logits, self.softcap)

    def loss(
        self,
        x: Hidden,
        tokens: Float[Array, "vocabulary dim"] | None,
        targets: Int[Array, "batch seq"] | Int[Array, " batch"],
    ) -> Float[Array, ""]:
        """Return the cross-entropy in nats, summed over all targets, in float32."""
        x, rows = self._operands(x if self.labels else x.reshape(-1, x.shape[-1]), tokens)
        return cross_entropy(
            x, rows, targets.ravel(), logits_bytes=self.logits_bytes, softcap=self.softcap
        )

    def _operands(self, x: Array, tokens: Array | None) -> tuple[Array, Array]:
        rows = self.kernel[...] if tokens is None else tokens
        x = x[:, 0] if self.labels else x
        # Keeps `x`, not the normalised `x` with its statistics.
        x = jax.checkpoint(self.norm)(x)
        return x, rows.astype(x.dtype)


def table(rows: int, dim: int, rngs: nnx.Rngs) -> nnx.Param[Array]:
    """Return a fresh (rows, dim) table: one normal vector of `INIT_STD` per row."""
    return nnx.Param(nnx.initializers.normal(INIT_STD)(rngs.params(), (rows, dim)))


def look_up(
    rows: Float[Array, "vocabulary dim"], tokens: Int[Array, "batch seq"], *, sequence: int
) -> Hidden:
    """Return the vector of each token, in the format of `rows`.

    A token outside the vocabulary becomes NaN instead of another token, so that it is noticed.

    Raises:
        ValueError: there are more tokens than `sequence`.
    """
    seq = tokens.shape[1]
    if seq > sequence:
        raise ValueError(
            f"`sequence` must be at least the number of tokens, {seq}, not {sequence}; "
            "cut the tokens, or configure a longer `sequence`"
        )
    # Unlike `jnp.take`, which would count a negative token from the end.
    return rows.at[tokens].get(mode="fill", wrap_negative_indices=False)


def by_token(product: Callable[[Array], _Result], x: Hidden) -> _Result:
    """Return products that see (tokens, dim); what is kept for the backward is `x` itself.

    On the CPU, their backward is about a tenth faster than that of products with (batch, seq, dim).
    A mesh that divides sequences has no division of their concatenation: kept in one row, each
    device would hold all of it.
    """

    def of_tokens(x: Array) -> _Result:
        return product(gathered(x.reshape(-1, x.shape[-1])))

    # Products are not computed again: no gradient needs their result.
    return jax.checkpoint(of_tokens)(x)


def gathered(flat: Float[Array, "tokens dim"]) -> Float[Array, "tokens dim"]:
    """Return tokens that every device of the mesh's axis `tensor` has, if there is a mesh.

    Each device then computes its share of the heads for all tokens. Without the constraint, XLA may
    compute all heads for a share of the tokens, and exchange scores.
    """
    if "data" not in jax.sharding.get_abstract_mesh().axis_names:
        return flat
    return jax.lax.with_sharding_constraint(flat, PartitionSpec("data"))


def residual_init_std(depth: int) -> float:
    """Return the standard deviation of fresh kernels that write to the residual stream.

    Smaller than `INIT_STD` by the root of their number, two in each of `depth` attention layers, so
    that the variance of the stream does not grow with the depth.
    """
    return INIT_STD / math.sqrt(2 * depth)


def merged(part: Part, config: Any, params: Parameters) -> Any:
    """Return the module of a part, with these parameters."""
    return nnx.merge(_graph(part, config), params)


@lru_cache(maxsize=256)  # a model asks for its three in every function that is traced
def _graph(part: Part, config: Any) -> nnx.GraphDef[Any]:
    # Shapes alone: no array is allocated.
    return nnx.graphdef(nnx.eval_shape(lambda: part(config, rngs=nnx.Rngs(0))))


@partial(jax.jit, static_argnums=(0, 1))
def draw_end(part: Part, config: Any, key: Key[Array, ""]) -> Parameters:
    """Return fresh parameters of the embedding or the head, in `param_dtype`."""
    return _draw(part, config, key)


@partial(jax.jit, static_argnums=(0, 1))
def draw_blocks(
    part: Part, config: Any, key: Key[Array, ""], numbers: Int[Array, " layers"]
) -> Parameters:
    """Return fresh parameters of the layers of these numbers, stacked, in `param_dtype`."""
    # A loop, not vmap: each layer runs the same compiled body, so the cut cannot change a bit.
    return jax.lax.map(lambda n: _draw(part, config, jax.random.fold_in(key, n)), numbers)


def _draw(part: Part, config: Any, key: Key[Array, ""]) -> Parameters:
    # Drawn in float32 and then rounded: bfloat16 uniforms would give only 256 different values.
    state = nnx.state(part(config, rngs=nnx.Rngs(params=key)), nnx.Param)
    return jax.tree.map(lambda leaf: leaf.astype(config.param_dtype), nnx.to_pure_dict(state))
