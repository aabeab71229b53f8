"""The embedding of tokens, and the head over tokens or classes."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float, Int, Key

from jaxpipe.models.cross_entropy import capped, cross_entropy
from jaxpipe.models.dropout import dropout
from jaxpipe.models.gpt_config import GptConfig
from jaxpipe.models.layers import INIT_STD, norm


def table(rows: int, dim: int, rngs: nnx.Rngs) -> nnx.Param[Array]:
    """Return a fresh (rows, dim) table: one normal vector of `INIT_STD` per row."""
    return nnx.Param(nnx.initializers.normal(INIT_STD)(rngs.params(), (rows, dim)))


def look_up(
    rows: Float[Array, "vocabulary dim"], tokens: Int[Array, "batch seq"], *, sequence: int
) -> Float[Array, "batch seq dim"]:
    """Return the vector of each token, in the format of `rows`.

    A token outside the vocabulary becomes NaN instead of another token, so that it is noticed.

    Raises:
        ValueError: there are more tokens than `sequence`.
    """
    seq = tokens.shape[1]
    if seq > sequence:
        raise ValueError(
            f"tokens must not be more than `sequence`: {seq} is above {sequence}; "
            "cut them, or configure a longer `sequence`"
        )
    # Unlike `jnp.take`, which would count a negative token from the end.
    return rows.at[tokens].get(mode="fill", wrap_negative_indices=False)


class Embedding(nnx.Module):
    """Add a token's vector to its position's; see `look_up`."""

    def __init__(self, config: GptConfig, *, rngs: nnx.Rngs) -> None:
        self.config = config
        self.tokens = table(config.vocabulary, config.dim, rngs)
        self.positions = table(config.sequence, config.dim, rngs)

    def __call__(
        self,
        tokens: Int[Array, "batch seq"],
        key: Key[Array, ""] | None,
        places: Int[Array, "batch seq"] | None = None,
    ) -> Float[Array, "batch seq dim"]:
        """Return the input of the first layer; dropout is off where `key` is None.

        Tokens are at the positions `places`, by default counted from 0 in each sequence.
        """
        found = look_up(self.tokens[...], tokens, sequence=self.config.sequence)
        positions = self.positions[: tokens.shape[1]]
        if places is not None:
            positions = self.positions[...].at[places].get(mode="fill")
        # Added in the format of the parameters, rounded once.
        x = (found + positions).astype(self.config.compute_dtype)
        return dropout(x, key, rate=self.config.dropout)


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
        self,
        x: Float[Array, "batch seq dim"],
        tokens: Float[Array, "vocabulary dim"] | None,
    ) -> Float[Array, "batch seq vocabulary"] | Float[Array, "batch classes"]:
        """Return the logits in float32; `tokens` is the embedding's table, None if not tied."""
        x, rows = self._operands(x, tokens)
        logits = jnp.einsum("...d,vd->...v", x, rows, preferred_element_type=jnp.float32)
        return capped(logits, self.softcap)

    def loss(
        self,
        x: Float[Array, "batch seq dim"],
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


def gpt_head(config: GptConfig, *, rngs: nnx.Rngs) -> Head:
    """Return the head of a GPT, with a LayerNorm, over tokens or classes."""
    over = norm(config, rngs)
    kernel = None if config.tied else table(config.classes or config.vocabulary, config.dim, rngs)
    return Head(over, kernel, logits_bytes=config.logits_bytes, labels=config.classes > 0)
