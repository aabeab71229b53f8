"""The dims of the parameters of the family `llama` that tensor parallelism splits."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

_COLUMNS = ("attention.query", "attention.key", "attention.value", "mlp.gate", "mlp.up")
_ROWS = ("attention.project", "mlp.down")

_SPLIT_LAYER: Final = MappingProxyType(
    {
        **{f"{name}.{leaf}": -1 for name in _COLUMNS for leaf in ("kernel", "bias")},
        **{f"{name}.kernel": -2 for name in _ROWS},
    }
)
_SPLIT_ENDS: Final = MappingProxyType({"embed.tokens": -2, "head.kernel": -2})


def split_of(parts: tuple[str, ...]) -> Mapping[str, int]:
    """Return the dim of each parameter that tensor parallelism splits, of a layer of some parts.

    What writes to the middle of a layer is split by columns, what reads from there by rows. Source:
    Shoeybi et al. 2019, "Megatron-LM", section 3.

    >>> split_of(())["blocks.mlp.up.kernel"], split_of(("full",))["blocks.full.mlp.down.kernel"]
    (-1, -2)
    """
    prefixes = [f"blocks.{part}." for part in parts] or ["blocks."]
    layers = {prefix + name: dim for prefix in prefixes for name, dim in _SPLIT_LAYER.items()}
    return {**_SPLIT_ENDS, **layers}
