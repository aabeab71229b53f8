"""The size and number formats of a transformer; without jax, so that planners can use it."""

import math
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType
from typing import Final

from jaxpipe.models.moe.routing import Dispatch, Routing
from jaxpipe.models.sizes import check_sizes

DTYPE_BYTES: Final = MappingProxyType({"float32": 4, "bfloat16": 2, "float16": 2})
"""The number formats of parameters and activations, and their bytes per element."""


class Attention(StrEnum):
    """The implementation of attention; the results differ by rounding alone."""

    AUTO = "auto"
    """`FLASH` on a GPU, if the format has 16 bits and a head's width suits it; in float32 on a CPU
    the calls of the extra `mkl`; else `PRODUCT`."""
    PRODUCT = "product"
    """Batched matrix products, anywhere."""
    FLASH = "flash"
    """cuDNN's fused kernel: a GPU and a format of 16 bits only."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GptConfig:
    """Describe a decoder-only GPT, or with `causal` = false an encoder.

    With `experts`, layers come in pairs, a dense one and one whose MLP is a mixture of experts; a
    pair is one layer for `num_layers` and for plans, so that all layers are equal.

    Args:
        num_layers: number of equal layers between the embedding and the head, with `experts` of
            pairs [layers].
        dim: the width of the residual stream.
        num_heads: attention heads per layer [heads]; `dim` is a multiple of it.
        sequence: the longest sequence, and the number of learned positions [tokens]; of a picture,
            one position for the class and one per patch.
        vocabulary: number of different tokens, of a picture of values of a pixel [tokens].
        tied: whether the head multiplies by the token embedding (tied embedding).
        dropout: probability that an element is dropped, at each of three places: after the
            embedding, after attention and after the MLP.
        param_dtype: format of fresh parameters, one of `DTYPE_BYTES`.
        compute_dtype: format of activations and of the operands of matrix products, one of
            `DTYPE_BYTES`. Statistics, softmax, logits and loss are float32 whatever it is.
        attention: kernel that computes attention.
        logits_bytes: memory that the logits of a microbatch may take in training [bytes]; larger
            logits are computed in chunks of tokens, and again in the backward.
        causal: whether a token attends to earlier tokens and itself alone.
        classes: number of labels that a sample can have, read at its first position; 0 if the
            targets are the next tokens.
        patch: side of the square patches of a picture, in pixels; 0 if inputs are tokens.
        channels: values of a pixel, such as 3 for colours.
        experts: number of experts of a mixture; 0 if all layers are dense.
        experts_per_token: how many experts process a token.
        capacity_factor: slots of all experts of a sequence together, per token.
        normalised_gates: whether the gates of a token sum to 1.
        balance_loss: weight of the load-balance loss in the training loss.
        z_loss: weight of the router's z-loss in the training loss.
        dispatch: how tokens are brought to their experts.
        routing_groups: groups of a batch whose tokens compete for the slots of experts; 0 if each
            sequence is a group.
        bottlenecks: places where few numbers of a token are kept, such as `[[2, 8], [4, 8]]`: after
            2 layers 8 of them, after 4 layers 8. A plan that cuts the layers there sends no more
            (`jaxpipe.models.bottleneck`).

    Raises:
        ValueError: a size below 1 or above what a model has, `dim` not a multiple of `num_heads`,
            `dropout` outside [0, 1), an unknown format, a tied head of classes, patches that fill
            no square, next tokens as targets that are visible, or a bottleneck that is not between
            two layers.

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
    causal: bool = True
    classes: int = 0
    patch: int = 0
    channels: int = 3
    experts: int = 0
    experts_per_token: int = 1
    capacity_factor: float = 1.25
    normalised_gates: bool = False
    balance_loss: float = 0.0
    z_loss: float = 0.0
    dispatch: Dispatch = Dispatch.EINSUM
    routing_groups: int = 0
    bottlenecks: tuple[tuple[int, int], ...] = ()

    def __post_init__(self) -> None:
        check_sizes(self, _SIZES, least=1)
        check_sizes(self, _COUNTS, least=0)
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
        self._check_ends()
        self._check_bottlenecks()
        # Raises what is wrong with it, also where no layer has it.
        self._routing(self.experts or self.experts_per_token)

    def _check_ends(self) -> None:
        if self.classes and self.tied:
            raise ValueError(
                f"`tied` must be false where the head has `classes`, {self.classes}: labels are no "
                "tokens"
            )
        if not self.causal and not self.classes:
            raise ValueError(
                "`causal` must be true where the targets are the next tokens, without `classes`: "
                "the model would see them"
            )
        if self.patch and not self.classes:
            raise ValueError("`classes` must be at least 1 where inputs are pictures, not 0")
        if self.patch and math.isqrt(self.sequence - 1) ** 2 != self.sequence - 1:
            side = math.isqrt(self.sequence - 1)
            raise ValueError(
                f"`sequence` must be 1 more than the patches of a square picture, not "
                f"{self.sequence}; for example {side**2 + 1}"
            )

    def _check_bottlenecks(self) -> None:
        places = [after for after, _ in self.bottlenecks]
        if places != sorted(set(places)) or not all(0 < a < self.num_layers for a in places):
            raise ValueError(
                f"`bottlenecks` must be after 1 to {self.num_layers - 1} layers, each place once "
                f"and in order, not after {', '.join(map(str, places))}"
            )
        for after, rank in self.bottlenecks:
            if not 1 <= rank <= self.dim:
                raise ValueError(
                    f"`bottlenecks` must keep at least 1 number and at most `dim`, {self.dim}, "
                    f"not {rank} after {after} layers"
                )
        if self.bottlenecks and self.patch:
            raise ValueError(
                f"`bottlenecks` ({_listed(self.bottlenecks)}) must be empty where inputs are "
                f"pictures, with `patch` {self.patch}: what tokens say is added behind each"
            )

    @property
    def hidden(self) -> int:
        """The width of the MLP's middle."""
        return 4 * self.dim

    @property
    def depth(self) -> int:
        """The number of attention layers: two for each pair."""
        return self.num_layers * (2 if self.experts else 1)

    @property
    def routing(self) -> Routing | None:
        """The options of the mixtures of experts; None if all layers are dense."""
        return self._routing(self.experts) if self.experts else None

    def _routing(self, experts: int) -> Routing:
        return Routing(
            experts=experts,
            experts_per_token=self.experts_per_token,
            capacity_factor=self.capacity_factor,
            normalised_gates=self.normalised_gates,
            balance_loss=self.balance_loss,
            z_loss=self.z_loss,
            dispatch=self.dispatch,
            groups=self.routing_groups,
        )

    @property
    def picture(self) -> tuple[int, int, int] | None:
        """The height, width and channels of an input in pixels; None if inputs are tokens."""
        if not self.patch:
            return None
        side = self.patch * math.isqrt(self.sequence - 1)
        return side, side, self.channels


def _listed(bottlenecks: tuple[tuple[int, int], ...]) -> str:
    return ", ".join(f"rank {rank} after {after} layers" for after, rank in bottlenecks)


_SIZES = (
    "num_layers",
    "dim",
    "num_heads",
    "sequence",
    "vocabulary",
    "logits_bytes",
    "channels",
    "experts_per_token",
)
_COUNTS = ("classes", "patch", "experts", "routing_groups")
