"""The embedding of tokens and the head of a decoder of the Llama type.

Source of the scaled embedding: Gemma Team 2024, "Gemma", and its published code.
"""

import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float, Int

from jaxpipe.models.ends import Head, look_up, table
from jaxpipe.models.llama.llama_config import LlamaConfig
from jaxpipe.models.llama.rms_norm import RmsNorm


class TokenEmbedding(nnx.Module):
    """The vector of each token; positions enter in attention.

    Args:
        config: the sizes, and whether vectors are multiplied by the root of the width.
        rngs: the source of fresh parameters.
    """

    def __init__(self, config: LlamaConfig, *, rngs: nnx.Rngs) -> None:
        self.config = config
        self.tokens = table(config.vocabulary, config.dim, rngs)

    def __call__(self, tokens: Int[Array, "batch seq"]) -> Float[Array, "batch seq dim"]:
        """Return the input of the first layer."""
        config = self.config
        found = look_up(self.tokens[...], tokens, sequence=config.sequence)
        x = found.astype(config.compute_dtype)
        # The factor is rounded to the format of computation first, as where Gemma was trained.
        return x * jnp.asarray(config.dim**0.5, x.dtype) if config.scaled_embedding else x


def llama_head(config: LlamaConfig, *, rngs: nnx.Rngs) -> Head:
    """Return the head: RMSNorm, then the logits of all tokens."""
    norm = RmsNorm(config, config.dim, rngs=rngs)
    kernel = None if config.tied else table(config.vocabulary, config.dim, rngs)
    return Head(norm, kernel, logits_bytes=config.logits_bytes, softcap=config.final_softcap)
