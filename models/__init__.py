"""The models that jaxpipe trains, and their costs.

`jaxpipe.models.build_model` is not imported here: planners need sizes and costs, and do not wait
for jax.
"""

from jaxpipe.models.catalogue import ModelConfig, config_type, gpt_preset, preset_config
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
from jaxpipe.models.gpt_config import DTYPE_BYTES, GptConfig
from jaxpipe.models.gpt_costs import ByRemat
from jaxpipe.models.llama_config import LlamaConfig
from jaxpipe.models.load_presets import load_preset, presets

__all__ = [
    "DTYPE_BYTES",
    "ByRemat",
    "GptConfig",
    "LlamaConfig",
    "ModelConfig",
    "activation_bytes",
    "config_type",
    "gpt_preset",
    "head_forward_flops",
    "layer_backward_flops",
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
