"""A family of another package: layers of a gated mean over earlier tokens, without attention.

`test_family.py` copies this module to a package of its own, which knows jaxpipe alone.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import jax.numpy as jnp
from flax import nnx

from jaxpipe.models.family import ByRemat, Family
from jaxpipe.models.modules import Head, look_up, table
from jaxpipe.models.transformer import Parts, Transformer


@dataclass(frozen=True, slots=True, kw_only=True)
class MeanConfig:
    """The fields of the section `[model]`."""

    family: Literal["mean"] = "mean"
    num_layers: int
    dim: int
    sequence: int
    vocabulary: int
    tied: bool = False
    param_dtype: str = "float32"
    compute_dtype: str = "float32"
    num_heads: int = 1
    classes: int = 0
    picture: None = None


class MeanCosts:
    """Closed forms; no layer is split over devices."""

    def layer_forward_flops(self, config: MeanConfig, /, *, batch: int, sequence: int) -> int:
        return 4 * batch * sequence * config.dim**2

    def layer_backward_flops(self, config: MeanConfig, /, *, batch: int, sequence: int) -> ByRemat:
        forward = self.layer_forward_flops(config, batch=batch, sequence=sequence)
        return ByRemat(none=2 * forward, dots=2 * forward, full=3 * forward)

    def head_forward_flops(self, config: MeanConfig, /, *, batch: int, sequence: int) -> int:
        return 2 * batch * sequence * config.dim * config.vocabulary

    def parameters_of_part(
        self, config: MeanConfig, /, *, layers: int, embed: bool, head: bool, tensor: int
    ) -> int:
        assert tensor == 1, tensor
        rows = config.vocabulary * config.dim
        return layers * 2 * config.dim**2 + (embed + head) * rows + head * config.dim

    def layer_residual_bytes_of_part(
        self,
        config: MeanConfig,
        /,
        *,
        batch: int,
        sequence: int,
        tensor: int,
        in_parts: bool = False,
    ) -> ByRemat:
        assert tensor == 1, tensor
        assert not in_parts
        unit = 4 * batch * sequence * config.dim
        return ByRemat(none=4 * unit, dots=3 * unit, full=unit)


class Tokens(nnx.Module):
    """The embedding: nothing is dropped, and no position is read."""

    def __init__(self, config: MeanConfig, *, rngs: nnx.Rngs) -> None:
        self.sequence = config.sequence
        self.tokens = table(config.vocabulary, config.dim, rngs)

    def __call__(self, tokens: Any, key: Any, places: Any = None) -> Any:
        del key, places
        return look_up(self.tokens[...], tokens, sequence=self.sequence)


class Layer(nnx.Module):
    """The mean of each token and those before it, behind a gate."""

    def __init__(self, config: MeanConfig, *, rngs: nnx.Rngs) -> None:
        self.mix = nnx.Linear(config.dim, config.dim, use_bias=False, rngs=rngs)
        self.gate = nnx.Linear(config.dim, config.dim, use_bias=False, rngs=rngs)

    def __call__(self, x: Any, key: Any, other: Any = None) -> tuple[Any, None]:
        del key, other
        earlier = jnp.cumsum(x, axis=1) / jnp.arange(1, x.shape[1] + 1)[:, None]
        return x + self.mix(earlier) * nnx.sigmoid(self.gate(x)), None


def head(config: MeanConfig, *, rngs: nnx.Rngs) -> Head:
    norm = nnx.RMSNorm(config.dim, rngs=rngs)
    return Head(norm, table(config.vocabulary, config.dim, rngs), logits_bytes=2**26)


@dataclass(frozen=True, slots=True)
class Mean(Transformer):
    """The model."""

    config: MeanConfig

    @property
    def split(self) -> Mapping[str, int]:
        return {}

    def _parts(self) -> Parts:
        return Parts(embedding=Tokens, block=Layer, head=head)


FAMILY = Family(name="mean", config=MeanConfig, costs=MeanCosts(), build=Mean)
