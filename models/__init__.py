"""The models that jaxpipe trains, and their costs.

`jaxpipe.models.gpt` is not imported here: planners need sizes and costs, and do not wait for jax.
"""

from jaxpipe.models.gpt_config import DTYPE_BYTES, GptConfig
from jaxpipe.models.gpt_costs import (
    ByRemat,
    activation_bytes,
    head_forward_flops,
    layer_backward_flops,
    layer_forward_flops,
    layer_residual_bytes,
    num_parameters,
    parameter_bytes,
    train_flops_per_token,
)
from jaxpipe.models.load_presets import load_preset, presets
from jaxpipe.models.split_costs import layer_residual_bytes_of_part, parameters_of_part

__all__ = [
    "DTYPE_BYTES",
    "ByRemat",
    "GptConfig",
    "activation_bytes",
    "head_forward_flops",
    "layer_backward_flops",
    "layer_forward_flops",
    "layer_residual_bytes",
    "layer_residual_bytes_of_part",
    "load_preset",
    "num_parameters",
    "parameter_bytes",
    "parameters_of_part",
    "presets",
    "train_flops_per_token",
]
