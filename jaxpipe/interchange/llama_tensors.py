"""Map tensors of the Llama type between the names of Hugging Face and those of our checkpoints.

::

    model.layers.3.self_attn.q_proj.weight (heads * width, dim)
        ◄──►  blocks.3.attention.query.kernel (dim, heads * width)
    model.layers.3.mlp.up_proj.weight, where windows alternate   ◄──►  blocks.1.full.mlp.up.kernel
    model.embed_tokens.weight                                    ◄──►  embed.tokens

Their kernels are (outputs, inputs) and ours (inputs, outputs): each is transposed. Tables of tokens
have a row for each token in both.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from jaxpipe.errors import CheckpointError
from jaxpipe.interchange.checked_tensor import check_shape, finite
from jaxpipe.interchange.tensor_files import TensorFiles
from jaxpipe.models import LlamaConfig

_HEAD = "lm_head.weight"
_BUFFER = ".rotary_emb.inv_freq"
"""The frequencies, which old files hold next to the parameters."""

_PRODUCTS = {
    "self_attn.q_proj": "attention.query",
    "self_attn.k_proj": "attention.key",
    "self_attn.v_proj": "attention.value",
    "self_attn.o_proj": "attention.project",
    "mlp.gate_proj": "mlp.gate",
    "mlp.up_proj": "mlp.up",
    "mlp.down_proj": "mlp.down",
}
_HEAD_NORMS = {
    "self_attn.q_norm": "attention.query_norm",
    "self_attn.k_norm": "attention.key_norm",
}
_NORMS = {"input_layernorm": "norm1", "post_attention_layernorm": "norm2"}
_GEMMA_NORMS = {
    "input_layernorm": "norm1",
    "post_attention_layernorm": "attention_norm",
    "pre_feedforward_layernorm": "norm2",
    "post_feedforward_layernorm": "mlp_norm",
}


@dataclass(frozen=True, slots=True)
class TensorPair:
    """One tensor under both names, and our shape of it."""

    theirs: str
    ours: str
    shape: tuple[int, ...]

    @property
    def is_transposed(self) -> bool:
        """Whether it is a kernel, with its dims in another order."""
        return self.ours.endswith(".kernel") and self.ours != "head.kernel"

    @property
    def their_shape(self) -> tuple[int, ...]:
        """Hugging Face's shape of it."""
        return self.shape[::-1] if self.is_transposed else self.shape


def llama_pairs(config: LlamaConfig) -> Iterator[TensorPair]:
    """Yield all tensors of a model.

    >>> config = LlamaConfig(
    ...     num_layers=1, dim=4, num_heads=2, num_kv_heads=1, hidden=6, sequence=8, vocabulary=9
    ... )
    >>> [(pair.ours, pair.shape) for pair in llama_pairs(config)][4]
    ('blocks.0.attention.key.kernel', (4, 2))
    """
    table = (config.vocabulary, config.dim)
    yield TensorPair("model.embed_tokens.weight", "embed.tokens", table)
    parts = ("local.", "full.") if config.alternating else ("",)
    for layer in range(config.depth):
        number, part = divmod(layer, len(parts))
        for theirs, ours, shape in _layer(config):
            yield TensorPair(
                f"model.layers.{layer}.{theirs}", f"blocks.{number}.{parts[part]}{ours}", shape
            )
    yield TensorPair("model.norm.weight", "head.norm.scale", (config.dim,))
    if not config.tied:
        yield TensorPair(_HEAD, "head.kernel", table)


def _layer(config: LlamaConfig) -> Iterator[tuple[str, str, tuple[int, ...]]]:
    norms = _GEMMA_NORMS if config.post_norms else _NORMS
    yield from ((f"{their}.weight", f"{our}.scale", (config.dim,)) for their, our in norms.items())
    for their, our in _PRODUCTS.items():
        shape = _kernel_shape(config, our)
        yield f"{their}.weight", f"{our}.kernel", shape
        if _has_bias(config, our):
            yield f"{their}.bias", f"{our}.bias", shape[1:]
    if config.qk_norm:
        for their, our in _HEAD_NORMS.items():
            yield f"{their}.weight", f"{our}.scale", (config.width,)


def _kernel_shape(config: LlamaConfig, name: str) -> tuple[int, int]:
    if name == "attention.project":
        return config.query_width, config.dim
    if name == "mlp.down":
        return config.hidden, config.dim
    outputs = {"attention.query": config.query_width, "mlp.gate": config.hidden}
    outputs["mlp.up"] = config.hidden
    return config.dim, outputs.get(name, config.kv_width)


def _has_bias(config: LlamaConfig, name: str) -> bool:
    if name == "attention.project":
        return config.project_bias
    return config.mlp_bias if name.startswith("mlp.") else config.qkv_bias


def known_pairs(config: LlamaConfig, present: Mapping[str, object]) -> tuple[TensorPair, ...]:
    """Return all tensors of a model, which must be those present.

    Raises:
        CheckpointError: one is missing, or there is another.
    """
    if config.depth > len(present):  # before that many names are made
        raise CheckpointError(
            f"`num_hidden_layers` ({config.depth:,}) needs several tensors in each layer, and "
            f"there are {len(present):,} in all; give the files that belong to its `config.json`"
        )
    pairs = tuple(llama_pairs(config))
    known = {pair.theirs for pair in pairs}
    ignored = {name for name in present if name.endswith(_BUFFER)}
    # Tied, some files hold the table twice.
    if config.tied:
        ignored.add(_HEAD)
    missing, unknown = sorted(known - present.keys()), sorted(present.keys() - known - ignored)
    if missing or unknown:
        verb, names = ("lack", missing) if missing else ("also have", unknown)
        raise CheckpointError(
            f"`config.json` is of a model with {len(known)} tensors, and the files {verb} "
            f"{', '.join(names[:4])}; give the files that belong together"
        )
    return pairs


def pieces_of(files: TensorFiles, pair: TensorPair) -> Iterator[np.ndarray]:
    """Yield one of Hugging Face's tensors as ours, in float32: rows, or a kernel in one piece.

    Raises:
        CheckpointError: it is of another shape, or not finite.
    """
    check_shape(files.shape(pair.theirs), pair.their_shape, name=pair.theirs)
    if pair.is_transposed:
        yield np.ascontiguousarray(finite(files.read(pair.theirs), name=pair.theirs).T)
        return
    for rows in files.rows(pair.theirs):
        yield finite(rows, name=pair.theirs)


def to_theirs(tensor: np.ndarray, pair: TensorPair) -> np.ndarray:
    """Return one of our tensors as Hugging Face's: the inverse of `pieces_of`."""
    return np.ascontiguousarray(tensor.T) if pair.is_transposed else np.ascontiguousarray(tensor)
