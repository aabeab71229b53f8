"""The embedding of tokens, and the head over tokens or classes."""

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float, Int, Key

from jaxpipe.models.cross_entropy import cross_entropy
from jaxpipe.models.dropout import dropout
from jaxpipe.models.gpt_config import GptConfig
from jaxpipe.models.layers import INIT_STD, norm


def table(rows: int, config: GptConfig, rngs: nnx.Rngs) -> nnx.Param[Array]:
    """Return a fresh (rows, dim) table: one normal vector of `INIT_STD` per row."""
    return nnx.Param(nnx.initializers.normal(INIT_STD)(rngs.params(), (rows, config.dim)))


class Embedding(nnx.Module):
    """Add a token's vector to its position's.

    A token outside the vocabulary becomes NaN instead of another token, so that it is noticed.
    """

    def __init__(self, config: GptConfig, *, rngs: nnx.Rngs) -> None:
        self.config = config
        self.tokens = table(config.vocabulary, config, rngs)
        self.positions = table(config.sequence, config, rngs)

    def __call__(
        self, tokens: Int[Array, "batch seq"], key: Key[Array, ""] | None
    ) -> Float[Array, "batch seq dim"]:
        """Return the input of the first layer; dropout is off where `key` is None."""
        seq = tokens.shape[1]
        if seq > self.config.sequence:
            raise ValueError(
                f"tokens must not be more than `sequence`: {seq} is above {self.config.sequence}; "
                "cut them, or configure a longer `sequence`"
            )
        # Unlike `jnp.take`, which would count a negative token from the end.
        found = self.tokens[...].at[tokens].get(mode="fill", wrap_negative_indices=False)
        # Added in the format of the parameters, rounded once.
        x = (found + self.positions[:seq]).astype(self.config.compute_dtype)
        return dropout(x, key, rate=self.config.dropout)


class Head(nnx.Module):
    """LayerNorm, then the logits: products with the tied embedding, or with a kernel of its own.

    Of a model with classes, only the first position of a sequence is read.
    """

    def __init__(self, config: GptConfig, *, rngs: nnx.Rngs) -> None:
        self.norm = norm(config, rngs)
        self.logits_bytes = config.logits_bytes
        self.labels = config.classes > 0
        if not config.tied:
            self.kernel = table(config.classes or config.vocabulary, config, rngs)

    def __call__(
        self,
        x: Float[Array, "batch seq dim"],
        tokens: Float[Array, "vocabulary dim"] | None,
    ) -> Float[Array, "batch seq vocabulary"] | Float[Array, "batch classes"]:
        """Return the logits in float32; `tokens` is the embedding's table, None if not tied."""
        x, rows = self._operands(x, tokens)
        return jnp.einsum("...d,vd->...v", x, rows, preferred_element_type=jnp.float32)

    def loss(
        self,
        x: Float[Array, "batch seq dim"],
        tokens: Float[Array, "vocabulary dim"] | None,
        targets: Int[Array, "batch seq"] | Int[Array, " batch"],
    ) -> Float[Array, ""]:
        """Return the cross-entropy in nats, summed over all targets, in float32."""
        x, rows = self._operands(x if self.labels else x.reshape(-1, x.shape[-1]), tokens)
        return cross_entropy(x, rows, targets.ravel(), logits_bytes=self.logits_bytes)

    def _operands(self, x: Array, tokens: Array | None) -> tuple[Array, Array]:
        rows = self.kernel[...] if tokens is None else tokens
        x = x[:, 0] if self.labels else x
        # Keeps `x`, not the normalised `x` with its statistics.
        x = jax.checkpoint(self.norm)(x)
        return x, rows.astype(x.dtype)
