"""The costs of a transformer in closed form, without jax: FLOPs, parameters, bytes.

Per token, with D = dim, S = sequence, V = vocabulary and c = the bytes of `compute_dtype`:

    =================  =====================  =====================
    forward, layer     24 D^2 + 4 S D FLOP    qkv 6, project 2, MLP 16; scores and mixing 2 + 2
    forward, head      2 D V FLOP
    parameters, layer  12 D^2 + 13 D
    activation         D c bytes              what crosses a stage boundary, each way
    =================  =====================  =====================

FLOPs are those of the matrix products. Scores above the diagonal count, as in published MFU,
although longer sequences leave most of them out (see `jaxpipe.models.kernels.attention`).
LayerNorm, softmax, GELU and dropout are left out: their time is that of their memory.

With experts, a layer is a pair: a dense layer, then one with the MLP of
`jaxpipe.models.moe.mixture_costs`.

Tensor parallelism splits, per layer, of the parameters and of the residuals in units of the
activation (see `layer_residual_bytes`):

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


Source: Narayanan et al. 2021, "Efficient Large-Scale Language Model Training on GPU Clusters Using
Megatron-LM", appendix (FLOPs); Korthikanti et al. 2022, "Reducing Activation Recomputation in Large
Transformer Models", section 4 (the method of counting residuals, not the numbers); Shoeybi et al.
2019, "Megatron-LM", section 3 (the split).
"""

from jaxpipe.models.family import ByRemat
from jaxpipe.models.gpt_config import DTYPE_BYTES, GptConfig
from jaxpipe.models.moe.mixture_costs import (
    mixture_flops,
    mixture_parameters,
    mixture_residual_bytes,
    router_residual_bytes,
)


def layer_forward_flops(config: GptConfig, *, batch: int, sequence: int) -> int:
    """Return the FLOPs of one layer's forward."""
    attention = batch * sequence * config.dim * (8 * config.dim + 4 * sequence)
    dense = attention + 16 * batch * sequence * config.dim**2
    if not config.experts:
        return dense
    return dense + attention + mixture_flops(config, batch=batch, sequence=sequence).forward


def layer_backward_flops(config: GptConfig, *, batch: int, sequence: int) -> ByRemat:
    """Return the FLOPs of one layer's backward, with recomputation.

    Twice the forward, and under every policy the scores once more. `full` adds the forward but for
    the last product of the MLP, whose result no gradient needs.
    """
    forward = layer_forward_flops(config, batch=batch, sequence=sequence)
    # Scores are computed again from the statistic: one product of sequence x sequence.
    scores = 2 * batch * sequence**2 * config.dim
    if not config.experts:
        down = 8 * batch * sequence * config.dim**2
        gradients = 2 * forward + scores
        return ByRemat(none=gradients, dots=gradients, full=gradients + forward - down)
    moe = mixture_flops(config, batch=batch, sequence=sequence)
    gradients = 2 * (forward - moe.forward) + moe.backward + 2 * scores
    # Products over experts are batched, which `dots` does not keep; no gradient needs the last one.
    again = moe.dispatch + moe.up + moe.down
    return ByRemat(none=gradients, dots=gradients + again, full=gradients + forward - moe.combine)


def head_forward_flops(config: GptConfig, *, batch: int, sequence: int) -> int:
    """Return the FLOPs of the head's forward; with classes, one position of a sample is read."""
    if config.classes:
        return 2 * batch * config.dim * config.classes
    return 2 * batch * sequence * config.dim * config.vocabulary


def num_parameters(config: GptConfig, *, layers: int, embed: bool, head: bool) -> int:
    """Return the number of parameters of a stage of this many layers, with its ends.

    A stage with a tied head and no embedding holds a copy of the token table.

    >>> gpt2 = GptConfig(num_layers=12, dim=768, num_heads=12, sequence=1024, vocabulary=50257)
    >>> num_parameters(gpt2, layers=12, embed=True, head=True)
    124439808
    """
    dim = config.dim
    total = layers * _layer_parameters(config)
    if embed:
        total += config.sequence * dim
        # Of patches the kernel, its bias and the first position's vector.
        total += (config.patch**2 * config.channels + 2) * dim if config.patch else 0
    if head:
        total += 2 * dim
    if head and not config.tied:
        total += (config.classes or config.vocabulary) * dim
    if not config.patch and (embed or (head and config.tied)):
        total += config.vocabulary * dim
    return total


def _layer_parameters(config: GptConfig) -> int:
    dim = config.dim
    dense = (12 * dim + 13) * dim
    # Attention and two norms.
    return dense + (4 * dim + 8) * dim + mixture_parameters(config) if config.experts else dense


def activation_bytes(config: GptConfig, *, batch: int, sequence: int) -> int:
    """Return the bytes that cross a stage boundary, each way, per microbatch."""
    return batch * sequence * config.dim * DTYPE_BYTES[config.compute_dtype]


def layer_residual_bytes(config: GptConfig, *, batch: int, sequence: int) -> ByRemat:
    """Return the bytes that one layer's forward keeps for its backward, weights excluded.

    In activations: its input, 2 normalised inputs, queries, keys, values, the output of attention,
    the middle of the residual stream, and the hidden layer (4 wide) before and after GELU make 16;
    `dots` keeps input, qkv, attention, project and up, which make 10. Both keep the statistic of
    attention, 4 bytes per token and head. Dropout adds its two masks, a byte per element, where
    they are not drawn again.
    """
    unit = activation_bytes(config, batch=batch, sequence=sequence)
    statistics = 4 * batch * sequence * config.num_heads
    masks = 2 * batch * sequence * config.dim if config.dropout else 0
    if not config.experts:
        return ByRemat(none=16 * unit + statistics + masks, dots=10 * unit + statistics, full=unit)
    sizes = {"batch": batch, "sequence": sequence}
    # The layer with experts has no hidden layer of its own: 8 and 5, and `down` of the dense one.
    return ByRemat(
        none=24 * unit + 2 * (statistics + masks) + mixture_residual_bytes(config, **sizes),
        dots=16 * unit + 2 * statistics + router_residual_bytes(config, **sizes),
        full=unit,
    )


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
    total = num_parameters(config, layers=layers, embed=embed, head=head)
    return total - split + split // tensor


def layer_residual_bytes_of_part(
    config: GptConfig, *, batch: int, sequence: int, tensor: int, in_parts: bool = False
) -> ByRemat:
    """Return the bytes that one of `tensor` devices keeps of a layer's residuals.

    With sequence parallelism, sequences are `in_parts` between products.
    """
    total = layer_residual_bytes(config, batch=batch, sequence=sequence)
    if in_parts:
        return total.over(tensor)
    unit = activation_bytes(config, batch=batch, sequence=sequence)
    # The statistic of each head, in float32.
    statistics = DTYPE_BYTES["float32"] * batch * sequence * config.num_heads

    def remaining(of_whole: int, split: int) -> int:
        return of_whole - split + split // tensor

    return ByRemat(
        none=remaining(total.none, 12 * unit + statistics),
        dots=remaining(total.dots, 8 * unit + statistics),
        full=total.full,
    )
