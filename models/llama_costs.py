"""The costs of a decoder of the Llama type in closed form, without jax: FLOPs, parameters, bytes.

Per token of an attention layer, with D = dim, Q = heads x width, K = kv_heads x width, H = hidden,
S = sequence and R = min(S, window):

    =================  ======================================  =====================================
    forward, layer     4 D (Q + K) + 6 D H + 4 R Q FLOP        query and project 2 D Q each, key and
                                                               value 2 D K each, MLP 2 D H three
                                                               times; scores and mixing 2 R Q each
    forward, head      2 D V FLOP
    parameters, layer  2 D (Q + K) + 3 D H + 2 D               kernels and two norms; optional
                                                               biases and norms add to it
    =================  ======================================  =====================================

FLOPs are those of the matrix products. Scores above the diagonal count, as in `gpt_costs`; those
before the window do not, also where a part of a short sequence computes some of them. Experts, in
place of the MLP, are those of `jaxpipe.models.moe.mixture_costs`.
"""

from jaxpipe.models.family import ByRemat
from jaxpipe.models.gpt_config import DTYPE_BYTES
from jaxpipe.models.llama_config import LlamaConfig
from jaxpipe.models.moe.mixture_costs import (
    mixture_flops,
    mixture_parameters,
    mixture_residual_bytes,
    router_residual_bytes,
)


def layer_forward_flops(config: LlamaConfig, *, batch: int, sequence: int) -> int:
    """Return the FLOPs of one layer's forward; of a group, of all."""
    tokens, layers = batch * sequence, len(config.windows)
    products = 4 * config.dim * (config.query_width + config.kv_width)
    scores = 4 * config.query_width * _reach(config, sequence)
    if config.experts:
        mlp = mixture_flops(config, batch=batch, sequence=sequence).forward
    else:
        mlp = tokens * 6 * _mlp(config)
    return tokens * (layers * products + scores) + layers * mlp


def layer_backward_flops(config: LlamaConfig, *, batch: int, sequence: int) -> ByRemat:
    """Return the FLOPs of one layer's backward, with recomputation.

    Twice the forward, and under every policy the scores once more. `full` adds the forward but for
    the last product of the MLP, whose result no gradient needs, unless a norm follows it. Gates of
    experts need it, and `dots` keeps no product of experts.
    """
    tokens = batch * sequence
    forward = layer_forward_flops(config, batch=batch, sequence=sequence)
    # Scores are computed again from the statistic: one product.
    gradients = 2 * forward + 2 * tokens * config.query_width * _reach(config, sequence)
    if config.experts:
        moe = mixture_flops(config, batch=batch, sequence=sequence)
        again = len(config.windows) * (moe.up + moe.down)
        return ByRemat(none=gradients, dots=gradients + again, full=gradients + forward)
    # Of a pair, the last product of the first layer is the input of the second.
    unneeded = 0 if config.post_norms else 2 * tokens * _mlp(config)
    return ByRemat(none=gradients, dots=gradients, full=gradients + forward - unneeded)


def head_forward_flops(config: LlamaConfig, *, batch: int, sequence: int) -> int:
    """Return the FLOPs of the head's forward."""
    return 2 * batch * sequence * config.dim * config.vocabulary


def num_parameters(config: LlamaConfig, *, layers: int, embed: bool, head: bool) -> int:
    """Return the number of parameters of a stage of this many layers, with its ends.

    A stage with a tied head and no embedding holds a copy of the token table.

    >>> llama_3_2_1b = LlamaConfig(
    ...     num_layers=16, dim=2048, num_heads=32, num_kv_heads=8, hidden=8192, sequence=131072,
    ...     vocabulary=128256, tied=True,
    ... )
    >>> num_parameters(llama_3_2_1b, layers=16, embed=True, head=True)
    1235814400
    """
    table = config.vocabulary * config.dim
    num_tables = max(embed, head) if config.tied else embed + head
    per_layer = split_parameters(config) + _replicated_parameters(config)
    return layers * per_layer + num_tables * table + head * config.dim


def split_parameters(config: LlamaConfig) -> int:
    """Return the parameters of one layer that tensor parallelism splits."""
    dim, hidden = config.dim, config.hidden
    kernels = 2 * dim * (config.query_width + config.kv_width)
    kernels += 0 if config.experts else 3 * _mlp(config)
    biases = config.qkv_bias * (config.query_width + 2 * config.kv_width)
    return len(config.windows) * (kernels + biases + config.mlp_bias * 2 * hidden)


def _replicated_parameters(config: LlamaConfig) -> int:
    """Return those of one layer that are not split: norms, biases added after a sum, experts."""
    norms = config.num_norms * config.dim
    wide = config.query_width + config.kv_width if config.wide_qk_norm else 2 * config.width
    heads = wide if config.qk_norm else 0
    biases = (config.project_bias + config.mlp_bias) * config.dim
    experts = mixture_parameters(config) if config.experts else 0
    return len(config.windows) * (norms + heads + biases + experts)


def parameters_of_part(
    config: LlamaConfig, *, layers: int, embed: bool, head: bool, tensor: int
) -> int:
    """Return the parameters that one of `tensor` devices holds of a stage.

    Token tables are split by rows, if there are as many for each part.
    """
    split = layers * split_parameters(config)
    if config.vocabulary % tensor == 0:
        num_tables = max(embed, head) if config.tied else embed + head
        split += num_tables * config.vocabulary * config.dim
    total = num_parameters(config, layers=layers, embed=embed, head=head)
    return total - split + split // tensor


def layer_residual_bytes(config: LlamaConfig, *, batch: int, sequence: int) -> ByRemat:
    """Return the bytes that one layer's forward keeps for its backward, weights excluded.

    Per token, `none` keeps the input and the middle of the residual stream, what pre-norms return,
    and the inputs of post-norms (D each); queries, keys, values and the output of attention, with
    `qk_norm` queries and keys before it as well; gate, up and their product (H each). `dots` keeps
    the input, the products with weights, but the last one only for a norm or a layer that follows,
    and the output of attention. Both keep the statistic of attention, 4 bytes per token and head.
    Of experts, `none` keeps what `mixture_residual_bytes` says, and `dots` logits of the router.
    """
    return layer_residual_bytes_of_part(config, batch=batch, sequence=sequence, tensor=1)


def layer_residual_bytes_of_part(
    config: LlamaConfig, *, batch: int, sequence: int, tensor: int, in_parts: bool = False
) -> ByRemat:
    """Return the bytes that one of `tensor` devices keeps of a layer's residuals.

    They share heads and the hidden layer, and each keeps the residual stream whole, or with
    sequence parallelism `in_parts`.
    """
    if in_parts:
        return layer_residual_bytes(config, batch=batch, sequence=sequence).over(tensor)
    dim, both = config.dim, config.query_width + config.kv_width
    layers, tokens = len(config.windows), batch * sequence
    size, statistics = DTYPE_BYTES[config.compute_dtype], layers * 4 * config.num_heads

    def remaining(*, total: int, split: int) -> int:
        return tokens * (size * total + (size * split + statistics) // tensor)

    before_norm = both if config.qk_norm else 0
    if config.experts:
        return _sparse_residual_bytes(
            config,
            batch=batch,
            sequence=sequence,
            none=remaining(
                total=layers * (2 + config.num_norms) * dim, split=layers * (2 * both + before_norm)
            ),
            dots=remaining(total=(1 + layers) * dim, split=layers * 2 * both),
        )
    outputs = layers if config.post_norms else layers - 1
    return ByRemat(
        none=remaining(
            total=layers * (2 + config.num_norms) * dim,
            split=layers * (2 * both + before_norm + 3 * config.hidden),
        ),
        dots=remaining(
            total=(1 + layers + outputs) * dim, split=layers * (2 * both + 2 * config.hidden)
        ),
        full=tokens * size * dim,
    )


def _sparse_residual_bytes(
    config: LlamaConfig, *, batch: int, sequence: int, none: int, dots: int
) -> ByRemat:
    """Return what a layer keeps without its experts, with what they keep on each device."""
    layers, sizes = len(config.windows), {"batch": batch, "sequence": sequence}
    return ByRemat(
        none=none + layers * mixture_residual_bytes(config, **sizes),
        dots=dots + layers * router_residual_bytes(config, **sizes),
        full=batch * sequence * config.dim * DTYPE_BYTES[config.compute_dtype],
    )


def _mlp(config: LlamaConfig) -> int:
    """Return the size of one kernel of the MLP."""
    return config.dim * config.hidden


def _reach(config: LlamaConfig, sequence: int) -> int:
    """Return the keys that the score products of a layer have, summed over a group."""
    assert not config.full_layers, "layers differ: `of_layer` has the configuration of each"
    return sum(min(sequence, window or sequence) for window in config.windows)
