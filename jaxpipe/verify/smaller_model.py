"""Smaller models of the same shape: what meshes divide, they still divide."""

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

from jaxpipe.models import GptConfig, LlamaConfig, ModelConfig
from jaxpipe.models.gpt_config import Attention
from jaxpipe.runtime.rank_mesh import MeshConfig

_TOKENS, _VOCABULARY, _HEAD_WIDTH, _WINDOW = 8, 16, 4, 3
"""The sizes that are aimed at; meshes may need multiples of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MeshParts:
    """Into how many parts the meshes of all ranks divide samples, sequences and layers."""

    data: int = 1
    tokens: int = 1
    tensor: int = 1

    @classmethod
    def of(cls, meshes: Iterable[MeshConfig]) -> "MeshParts":
        """Return the least numbers that all meshes divide."""
        meshes = tuple(meshes)
        in_sequence = [mesh.tensor for mesh in meshes if mesh.sequence_parallel]
        return cls(
            data=math.lcm(*(mesh.data for mesh in meshes)),
            tokens=math.lcm(*(2 * m.context for m in meshes if m.context > 1), *in_sequence),
            tensor=math.lcm(*(mesh.tensor for mesh in meshes)),
        )

    @property
    def of_parameters(self) -> int:
        """The number that divides a dim however a mesh divides it."""
        return math.lcm(self.data, self.tokens, self.tensor)


def smaller_sequence(model: ModelConfig, trained: int | None, parts: MeshParts) -> int:
    """Return the tokens of a sample; a picture has 2 x 2 patches, and one token before them.

    >>> from jaxpipe.models import preset_config
    >>> smaller_sequence(preset_config("gpt2"), None, MeshParts(tokens=3))
    9
    """
    if model.picture is not None:
        return min(model.sequence, 5)
    least = math.ceil(_TOKENS / parts.tokens) * parts.tokens
    return min(trained or model.sequence, least)


def smaller_model(
    model: ModelConfig,
    parts: MeshParts,
    *,
    num_layers: int,
    sequence: int,
    is_shorter: bool = False,
) -> ModelConfig:
    """Return a model of fewer layers; of the families of this package, with smaller widths too.

    Samples have `sequence` tokens, the longest that the model takes unless that `is_shorter`.

    >>> from jaxpipe.models import preset_config
    >>> small = smaller_model(preset_config("gpt2"), MeshParts(tensor=4), num_layers=2, sequence=8)
    >>> small.dim, small.num_heads, small.vocabulary
    (16, 4, 17)
    """
    common: dict[str, Any] = {
        "num_layers": num_layers,
        "sequence": sequence + is_shorter,
        "vocabulary": _alike(model.vocabulary, _VOCABULARY, parts.of_parameters),
        **_experts(model, parts),
    }
    if isinstance(model, GptConfig):
        small: dict[str, Any] = _of_gpt(model, parts)
    elif isinstance(model, LlamaConfig):
        kv_heads = _heads(model.num_kv_heads, parts)
        heads = kv_heads * min(2, model.num_heads // model.num_kv_heads)
        width = _head_width(heads, model.dim, parts)
        small = {
            "num_kv_heads": kv_heads,
            "num_heads": heads,
            "dim": heads * width,
            "head_width": width + 2 if model.head_width else 0,
            "hidden": _alike(model.hidden, 3 * _HEAD_WIDTH, parts.of_parameters),
            "window": min(model.window, _WINDOW),
            "rotary_width": min(model.rotary_width, width // 4 * 2),
        }
    else:  # of another package: how its widths depend on each other is not known
        return replace(model, num_layers=num_layers)
    if model.attention is Attention.FLASH:
        small["attention"] = Attention.PRODUCT
    return replace(model, **common, **small, logits_bytes=_logits_bytes(model, common))


def _of_gpt(model: GptConfig, parts: MeshParts) -> dict[str, Any]:
    heads = _heads(model.num_heads, parts)
    return {
        "num_heads": heads,
        "dim": heads * _head_width(heads, model.dim, parts),
        "patch": min(model.patch, 2),
        "classes": min(model.classes, 5),
        # Fewer than the width, as in the real model.
        "bottlenecks": tuple((after, min(rank, heads)) for after, rank in model.bottlenecks),
    }


def _heads(heads: int, parts: MeshParts) -> int:
    """Return two heads for each device, or one where there are no more."""
    return min(heads, 2 * parts.tensor) if heads % (2 * parts.tensor) == 0 else parts.tensor


def _head_width(heads: int, dim: int, parts: MeshParts) -> int:
    """Return the width of a head, an even number, with which meshes divide the width as before."""
    width = _HEAD_WIDTH
    while dim % parts.of_parameters == 0 and heads * width % parts.of_parameters:
        width += 2
    return width


def _alike(real: int, least: int, parts: int) -> int:
    """Return the least number from `least` on that `parts` divide if they divide the real one.

    >>> _alike(50257, 16, 2), _alike(50304, 17, 2), _alike(50257, 16, 1)
    (17, 18, 16)
    """
    if parts == 1:
        return min(real, least)
    number = least
    while (number % parts == 0) != (real % parts == 0):
        number += 1
    return min(real, number)


def _experts(model: ModelConfig, parts: MeshParts) -> dict[str, int]:
    """Return the field of experts of a family that has it."""
    if not isinstance(model, GptConfig | LlamaConfig) or not model.experts:
        return {}
    least = max(4, model.experts_per_token)
    return {"experts": _alike(model.experts, min(model.experts, least), parts.tensor)}


def _logits_bytes(model: GptConfig | LlamaConfig, small: dict[str, Any]) -> int:
    """Return a limit that divides the logits of two samples if the real one divides some."""
    of_sample = 4 * model.sequence * model.vocabulary
    if model.logits_bytes >= of_sample:
        return model.logits_bytes
    return 4 * small["sequence"] * small["vocabulary"] // 2
