"""The size and number formats of a GPT; importable without jax, so that planners can use it."""

from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType
from typing import Final

DTYPE_BYTES: Final = MappingProxyType({"float32": 4, "bfloat16": 2, "float16": 2})
"""The number formats of parameters and activations, and their bytes per element."""


class Attention(StrEnum):
    """The implementation of attention; the results differ by rounding alone."""

    AUTO = "auto"
    """`FLASH` on a GPU, if the format has 16 bits and a head's width suits it; else `PRODUCT`."""
    PRODUCT = "product"
    """Batched matrix products, anywhere."""
    FLASH = "flash"
    """cuDNN's fused kernel: a GPU and a format of 16 bits only."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GptConfig:
    """Describe a decoder-only GPT.

    Args:
        num_layers: number of equal layers between the embedding and the head [layers].
        dim: the width of the residual stream.
        num_heads: attention heads per layer [heads]; `dim` is a multiple of it.
        sequence: the longest sequence, and the number of learned positions [tokens].
        vocabulary: number of different tokens [tokens].
        tied: whether the head multiplies by the token embedding (tied embedding).
        dropout: probability that an element is dropped, at each of three places: after the
            embedding, after attention and after the MLP.
        param_dtype: format of fresh parameters, one of `DTYPE_BYTES`.
        compute_dtype: format of activations and of the operands of matrix products, one of
            `DTYPE_BYTES`. Statistics, softmax, logits and loss are float32 whatever it is.
        attention: kernel that computes attention.
        logits_bytes: memory that the logits of a microbatch may take in training [bytes]; larger
            logits are computed in chunks of tokens, and again in the backward.

    Raises:
        ValueError: a size below 1, `dim` not a multiple of `num_heads`, `dropout` outside [0, 1),
            or an unknown format.

    >>> config = GptConfig(num_layers=2, dim=64, num_heads=4, sequence=32, vocabulary=256)
    >>> config.hidden
    256
    """

    num_layers: int
    dim: int
    num_heads: int
    sequence: int
    vocabulary: int
    tied: bool = True
    dropout: float = 0.0
    param_dtype: str = "float32"
    compute_dtype: str = "float32"
    attention: Attention = Attention.AUTO
    logits_bytes: int = 2**26

    def __post_init__(self) -> None:
        sizes = ("num_layers", "dim", "num_heads", "sequence", "vocabulary", "logits_bytes")
        for name in sizes:
            if getattr(self, name) < 1:
                raise ValueError(f"`{name}` must be at least 1, not {getattr(self, name)}")
        if self.dim % self.num_heads:
            nearest = self.dim + self.num_heads - self.dim % self.num_heads
            raise ValueError(
                f"`dim` must be a multiple of `num_heads`: {self.dim} is not one of "
                f"{self.num_heads}; the next is {nearest}"
            )
        if not 0 <= self.dropout < 1:
            raise ValueError(f"`dropout` must be at least 0 and below 1, not {self.dropout}")
        for name in ("param_dtype", "compute_dtype"):
            if getattr(self, name) not in DTYPE_BYTES:
                raise ValueError(
                    f"`{name}` must be one of {', '.join(DTYPE_BYTES)}, not {getattr(self, name)!r}"
                )

    @property
    def hidden(self) -> int:
        """The width of the MLP's middle."""
        return 4 * self.dim
