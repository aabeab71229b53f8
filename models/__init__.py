"""The models that jaxpipe trains, and their costs.

- `gpt`, `llama`: the families, each with its configuration and its costs beside it
- `transformer`, `decoder`: what they share, in training and in generation
- `family`, `catalogue`: the record of a family, the table of families, presets
- `costs`: the costs of any model, by its family
- `kernels`, `moe`: attention, losses and rotations; mixtures of experts

Nothing here imports jax before a model is built: planners need sizes and costs.
"""

from jaxpipe.models.catalogue import (
    build_model,
    config_type,
    experts_are_by_token,
    family_of,
    gpt_preset,
    layer_config,
    load_preset,
    preset_config,
    presets,
)
from jaxpipe.models.costs import (
    activation_bytes,
    head_forward_flops,
    layer_backward_flops,
    layer_forward_flops,
    layer_residual_bytes,
    layer_residual_bytes_of_part,
    num_parameters,
    parameter_bytes,
    parameters_of_part,
    train_flops_per_token,
)
from jaxpipe.models.family import ByRemat, Family, ModelConfig
from jaxpipe.models.gpt_config import DTYPE_BYTES, GptConfig
from jaxpipe.models.llama_config import LlamaConfig

__all__ = [
    "DTYPE_BYTES",
    "ByRemat",
    "Family",
    "GptConfig",
    "LlamaConfig",
    "ModelConfig",
    "activation_bytes",
    "build_model",
    "config_type",
    "experts_are_by_token",
    "family_of",
    "gpt_preset",
    "head_forward_flops",
    "layer_backward_flops",
    "layer_config",
    "layer_forward_flops",
    "layer_residual_bytes",
    "layer_residual_bytes_of_part",
    "load_preset",
    "num_parameters",
    "parameter_bytes",
    "parameters_of_part",
    "preset_config",
    "presets",
    "train_flops_per_token",
]
