"""What a configuration of the family `llama` must satisfy; without jax."""

import math
from typing import TYPE_CHECKING

from jaxpipe.models.gpt_config import DTYPE_BYTES, Attention
from jaxpipe.models.rope_scaling import RopeScaling, check_divisors
from jaxpipe.models.sizes import check_sizes

if TYPE_CHECKING:  # whose construction calls this
    from jaxpipe.models.llama_config import LlamaConfig

_SIZES = (
    "num_layers",
    "dim",
    "num_heads",
    "num_kv_heads",
    "hidden",
    "sequence",
    "vocabulary",
    "logits_bytes",
    "rope_sequence",
)
_NOT_NEGATIVE = (
    "experts",
    "head_width",
    "norm_epsilon",
    "window",
    "attention_softcap",
    "final_softcap",
    "query_scale",
    "rotary_width",
    "rope_magnitude",
    "local_base",
)
_POSITIVE = ("embedding_factor", "residual_factor", "logits_divisor")


def check_llama(config: "LlamaConfig") -> None:
    """Check the sizes of a model, and that its variants fit each other.

    Raises:
        ValueError: see `LlamaConfig`.
    """
    check_sizes(config, _SIZES, least=1)
    check_sizes(config, _NOT_NEGATIVE, least=0)
    for name in _POSITIVE:
        if not 0 < getattr(config, name) < math.inf:
            raise ValueError(f"`{name}` must be above 0, not {getattr(config, name)}")
    for name in ("param_dtype", "compute_dtype"):
        if getattr(config, name) not in DTYPE_BYTES:
            raise ValueError(
                f"`{name}` must be one of {', '.join(DTYPE_BYTES)}, not {getattr(config, name)!r}"
            )
    _check_heads(config)
    _check_experts(config)
    _check_full_layers(config)
    _check_scores(config)
    _check_positions(config)


def _check_heads(config: "LlamaConfig") -> None:
    if config.num_heads % config.num_kv_heads:
        choices = [n for n in range(1, config.num_heads + 1) if config.num_heads % n == 0]
        raise ValueError(
            f"`num_heads` must be a multiple of `num_kv_heads`: {config.num_heads} is not one of "
            f"{config.num_kv_heads}; choose from {', '.join(map(str, choices))}"
        )
    if not config.head_width and config.dim % config.num_heads:
        raise ValueError(
            f"`dim` must be a multiple of `num_heads`: {config.dim} is not one of "
            f"{config.num_heads}; or set `head_width`"
        )
    if config.width % 2:
        raise ValueError(
            f"`head_width` must be even, not {config.width}: rotary positions turn pairs"
        )
    if config.rotary_width % 2 or config.rotary_width > config.width:
        raise ValueError(
            f"`rotary_width` must be even and at most the width of a head, {config.width}, not "
            f"{config.rotary_width}"
        )


def _check_experts(config: "LlamaConfig") -> None:
    _ = config.routing  # raises what is wrong with it
    for name, absent in (("experts_per_token", 1), ("normalised_gates", False)):
        if not config.experts and (value := getattr(config, name)) != absent:
            raise ValueError(
                f"`{name}` must be {absent} where `experts` is 0, not {value}; or set `experts`"
            )
    if config.experts and config.mlp_bias:
        raise ValueError(
            f"`mlp_bias` must be false where `experts` is {config.experts}: they have no biases"
        )


def _check_full_layers(config: "LlamaConfig") -> None:
    full, count = config.full_layers, config.num_layers
    if full and config.alternating:
        raise ValueError(
            f"`full_layers` must be empty with `alternating`, not {full!s:.80}: the last layer "
            "of each group is full; remove one of them"
        )
    in_order = list(full) == sorted(set(full)) and all(0 <= layer < count for layer in full)
    if not in_order or len(full) == count:
        raise ValueError(
            f"`full_layers` must be numbers from 0 to {count - 1} in ascending order, not of "
            f"all layers, and is {full!s:.80}"
        )
    if (full or config.alternating) and not (config.window or config.unturned):
        name = "full_layers" if full else "alternating"
        raise ValueError(
            f"`window` must be at least 1 where some layers have one (`{name}`), not 0"
        )


def _check_scores(config: "LlamaConfig") -> None:
    if config.period < 2:
        raise ValueError(f"`period` must be at least 2, not {config.period}")
    if not config.alternating and config.period != 2:
        raise ValueError(
            f"`period` must be 2 where layers are no groups, not {config.period}; or set "
            "`alternating`"
        )
    if not (config.alternating or config.full_layers) and config.local_base:
        raise ValueError(
            f"`local_base` must be 0 where all layers are equal, not {config.local_base}; or set "
            "`alternating` or `full_layers`"
        )
    if config.attention is Attention.FLASH and config.attention_softcap:
        raise ValueError(
            f"`attention` ({config.attention}) must be {Attention.AUTO} with `attention_softcap` "
            f"({config.attention_softcap}): the fused kernel bounds no scores"
        )


def _check_positions(config: "LlamaConfig") -> None:
    if not config.rope_base > 1:
        raise ValueError(f"`rope_base` must be above 1, not {config.rope_base}")
    if config.local_base and not config.local_base > 1:
        raise ValueError(f"`local_base` must be above 1, or 0, not {config.local_base}")
    if not config.rope_factor >= 1:
        raise ValueError(f"`rope_factor` must be at least 1, not {config.rope_factor}")
    ramps = config.rope_scaling in (RopeScaling.LLAMA3, RopeScaling.YARN)
    if ramps and not 0 < config.rope_low < config.rope_high:
        raise ValueError(
            f"`rope_low` must be above 0 and below `rope_high`, {config.rope_high}, not "
            f"{config.rope_low}"
        )
    if config.rope_scaling is RopeScaling.DYNAMIC and config.sequence > config.rope_sequence:
        raise ValueError(
            f"`sequence` must be at most `rope_sequence`, {config.rope_sequence}, with "
            f"`rope_scaling` {config.rope_scaling.value!r}, not {config.sequence}: base and length "
            "would change together"
        )
    check_divisors(
        config.rope_scaling,
        {"rope_short": config.rope_short, "rope_long": config.rope_long},
        num_pairs=config.turned_width // 2,
        sequence=config.rope_sequence,
    )
