"""The costs of bottlenecks in closed form, without jax: parameters, and the bytes at a cut.

With D = dim, V = vocabulary, S = sequence, a bottleneck of rank r has D r parameters on the stage
before it and (r + 2 V + S) D on the stage behind. Its two products are 4 D r FLOPs of a token, of a
layer's 24 D^2: they are left out of costs.
"""

from dataclasses import replace
from typing import Any

from jaxpipe.models.family import ModelConfig
from jaxpipe.models.gpt_config import DTYPE_BYTES


def bottleneck_parameters(config: ModelConfig, *, layers: range) -> int:
    """Return the parameters of bottlenecks that a stage of these layers holds.

    >>> from jaxpipe.models.gpt_config import GptConfig
    >>> sizes = dict(num_layers=2, dim=8, num_heads=2, sequence=16, vocabulary=32)
    >>> config = GptConfig(**sizes, bottlenecks=((1, 2),))
    >>> [bottleneck_parameters(config, layers=layers) for layers in (range(1), range(1, 2))]
    [16, 656]
    """
    total = 0
    for after, rank in bottlenecks_of(config):
        total += config.dim * rank * (after - 1 in layers)
        total += (rank + 2 * config.vocabulary + config.sequence) * config.dim * (after in layers)
    return total


def narrow_bytes(config: ModelConfig, *, batch: int, sequence: int) -> dict[int, int]:
    """Return the bytes that cross a cut at each bottleneck, each way, by the layers before it."""
    value_bytes = DTYPE_BYTES[config.compute_dtype]
    return {after: batch * sequence * rank * value_bytes for after, rank in bottlenecks_of(config)}


def without_bottlenecks(config: Any) -> Any:
    """Return the configuration without bottlenecks: the layers and ends are those of that model."""
    return replace(config, bottlenecks=()) if bottlenecks_of(config) else config


def bottlenecks_of(config: ModelConfig) -> tuple[tuple[int, int], ...]:
    """Return the layers before each bottleneck of a model, and how many numbers it keeps."""
    # Other families have no such field.
    return getattr(config, "bottlenecks", ())
