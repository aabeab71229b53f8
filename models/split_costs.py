"""The part of a GPT that tensor parallelism splits, in closed form, without jax.

Per layer, of the parameters and of the residuals in units of the activation (see `gpt_costs`):

    =============  ==========================  ====================================================
    parameters     12 D^2 + 4 D split          kernels of qkv, project, up and down, bias of up
                   9 D replicated              norms and the other biases
    residuals      12 of 16 units split        qkv 3, output of attention 1, hidden layer twice 4
    `remat` none   4 replicated                input, 2 normalised inputs, middle of the stream
    residuals      8 of 10 units split         qkv 3, output of attention 1, up 4
    `remat` dots   2 replicated                input, project
    =============  ==========================  ====================================================

With sequence parallelism all residuals are split: those that heads do not divide, by tokens.

Token tables are split by rows, if there are as many for each part. The division is that of
`jaxpipe.models.gpt.SPLIT`; a test compares both.

Source: Shoeybi et al. 2019, "Megatron-LM", section 3.
"""

from jaxpipe.models.gpt_config import DTYPE_BYTES, GptConfig
from jaxpipe.models.gpt_costs import ByRemat, activation_bytes, layer_residual_bytes, num_parameters


def parameters_of_part(
    config: GptConfig, *, layers: int, embed: bool, head: bool, tensor: int
) -> int:
    """Return the parameters that one of `tensor` devices holds of a stage.

    A stage with a tied head and no embedding holds a copy of the token table.

    >>> gpt2 = GptConfig(num_layers=12, dim=768, num_heads=12, sequence=1024, vocabulary=50257)
    >>> parameters_of_part(gpt2, layers=12, embed=True, head=True, tensor=1)
    124439808
    >>> parameters_of_part(gpt2, layers=12, embed=True, head=True, tensor=2)
    81954048
    """
    dim = config.dim
    split = layers * (12 * dim + 4) * dim
    if config.vocabulary % tensor == 0:
        num_tables = max(embed, head) if config.tied else embed + head
        split += num_tables * config.vocabulary * dim
    whole = num_parameters(config, layers=layers, embed=embed, head=head)
    return whole - split + split // tensor


def layer_residual_bytes_of_part(
    config: GptConfig, *, batch: int, sequence: int, tensor: int, in_parts: bool = False
) -> ByRemat:
    """Return the bytes that one of `tensor` devices keeps of a layer's residuals.

    With sequence parallelism, sequences are `in_parts` between products.
    """
    whole = layer_residual_bytes(config, batch=batch, sequence=sequence)
    if in_parts:
        return whole.over(tensor)
    unit = activation_bytes(config, batch=batch, sequence=sequence)
    # The statistic of each head, in float32.
    statistics = DTYPE_BYTES["float32"] * batch * sequence * config.num_heads

    def kept(of_whole: int, split: int) -> int:
        return of_whole - split + split // tensor

    return ByRemat(
        none=kept(whole.none, 12 * unit + statistics),
        dots=kept(whole.dots, 8 * unit + statistics),
        full=whole.full,
    )
