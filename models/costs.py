"""The costs of every model, by the closed forms of its family; without jax."""

from jaxpipe.models.catalogue import family_of, layer_config
from jaxpipe.models.family import ByRemat, ModelConfig
from jaxpipe.models.gpt_config import DTYPE_BYTES


def layer_forward_flops(config: ModelConfig, *, batch: int, sequence: int) -> int:
    """Return the FLOPs of one layer's forward; where layers differ, `config` is `layer_config`."""
    return family_of(config).costs.layer_forward_flops(config, batch=batch, sequence=sequence)


def layer_backward_flops(config: ModelConfig, *, batch: int, sequence: int) -> ByRemat:
    """Return the FLOPs of one layer's backward, with recomputation; `config` as in the forward."""
    return family_of(config).costs.layer_backward_flops(config, batch=batch, sequence=sequence)


def head_forward_flops(config: ModelConfig, *, batch: int, sequence: int) -> int:
    """Return the FLOPs of the head's forward; with classes, one position of a sample is read."""
    return family_of(config).costs.head_forward_flops(config, batch=batch, sequence=sequence)


def train_flops_per_token(config: ModelConfig, *, sequence: int) -> int:
    """Return the FLOPs of training per token, forward and backward, without recomputation.

    The numerator of the MFU: tokens per second times this, over the peak of all devices.

    >>> from jaxpipe.models.gpt_config import GptConfig
    >>> gpt2 = GptConfig(num_layers=12, dim=768, num_heads=12, sequence=1024, vocabulary=50257)
    >>> train_flops_per_token(gpt2, sequence=1024)
    854438400
    """
    layers = sum(
        layer_forward_flops(layer_config(config, number), batch=1, sequence=sequence)
        for number in range(config.num_layers)
    )
    head = head_forward_flops(config, batch=1, sequence=sequence)
    # 3: the backward is two products for each of the forward.
    return 3 * (layers + head) // sequence


def num_parameters(config: ModelConfig, *, layers: int, embed: bool, head: bool) -> int:
    """Return the number of parameters of a stage of this many layers, with its ends.

    A stage with a tied head and no embedding holds a copy of the token table.
    """
    return parameters_of_part(config, layers=layers, embed=embed, head=head, tensor=1)


def parameters_of_part(
    config: ModelConfig, *, layers: int, embed: bool, head: bool, tensor: int
) -> int:
    """Return the parameters that one of `tensor` devices holds of a stage."""
    return family_of(config).costs.parameters_of_part(
        config, layers=layers, embed=embed, head=head, tensor=tensor
    )


def parameter_bytes(config: ModelConfig, *, layers: int, embed: bool, head: bool) -> int:
    """Return the bytes of `num_parameters` in `param_dtype`."""
    count = num_parameters(config, layers=layers, embed=embed, head=head)
    return count * DTYPE_BYTES[config.param_dtype]


def activation_bytes(config: ModelConfig, *, batch: int, sequence: int) -> int:
    """Return the bytes that cross a stage boundary, each way, per microbatch."""
    return batch * sequence * config.dim * DTYPE_BYTES[config.compute_dtype]


def layer_residual_bytes(config: ModelConfig, *, batch: int, sequence: int) -> ByRemat:
    """Return the bytes that one layer's forward keeps for its backward, weights excluded."""
    return layer_residual_bytes_of_part(config, batch=batch, sequence=sequence, tensor=1)


def layer_residual_bytes_of_part(
    config: ModelConfig, *, batch: int, sequence: int, tensor: int, in_parts: bool = False
) -> ByRemat:
    """Return the bytes that one of `tensor` devices keeps of a layer's residuals.

    With sequence parallelism, sequences are `in_parts` between products.
    """
    return family_of(config).costs.layer_residual_bytes_of_part(
        config, batch=batch, sequence=sequence, tensor=tensor, in_parts=in_parts
    )
