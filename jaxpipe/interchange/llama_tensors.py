"""Map tensors of the Llama type between the names of Hugging Face and those of our checkpoints.

::

    model.layers.3.self_attn.q_proj.weight (heads * width, dim)
        ◄──►  blocks.3.attention.query.kernel (dim, heads * width)
    model.layers.3.mlp.up_proj.weight, where windows alternate   ◄──►  blocks.1.full.mlp.up.kernel
    model.embed_tokens.weight                                    ◄──►  embed.tokens
    model.layers.3.mlp.experts.5.up_proj.weight (hidden, dim)
        ◄──►  number 5 of blocks.3.moe.up (experts, dim, hidden)

Their kernels are (outputs, inputs) and ours (inputs, outputs): each is transposed. Tables of tokens
have a row for each token in both.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from jaxpipe.errors import CheckpointError
from jaxpipe.interchange.architecture_record import Architecture
from jaxpipe.interchange.architectures import LLAMA, QWEN3_MOE
from jaxpipe.interchange.checked_tensor import check_shape, finite
from jaxpipe.interchange.tensor_files import TensorFiles
from jaxpipe.models import LlamaConfig

HEAD = "lm_head.weight"
ROUTER = "moe.router"
"""Our name in a layer of the kernel that chooses experts."""
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
_POST_NORMS = {
    "post_attention_layernorm": "attention_norm",
    "post_feedforward_layernorm": "mlp_norm",
}
_GEMMA_NORMS = {
    "input_layernorm": "norm1",
    "pre_feedforward_layernorm": "norm2",
    **_POST_NORMS,
}
_FUSED = {
    "self_attn.q_proj": "self_attn.qkv_proj",
    "self_attn.k_proj": "self_attn.qkv_proj",
    "self_attn.v_proj": "self_attn.qkv_proj",
    "mlp.gate_proj": "mlp.gate_up_proj",
    "mlp.up_proj": "mlp.gate_up_proj",
}
"""Products that are one in some architectures, the outputs of the first before the others'."""


@dataclass(frozen=True, slots=True)
class TensorPair:
    """One tensor under both names, and our shape of it.

    Where theirs is several of ours, `first` is the number of its first row that is in this one, and
    `num_rows` of how many there are. Where ours is several of theirs, `expert` is the number of
    this one in its first dim.
    """

    theirs: str
    ours: str
    shape: tuple[int, ...]
    first: int = 0
    num_rows: int | None = None
    expert: int | None = None

    @property
    def is_transposed(self) -> bool:
        """Whether it is a kernel, with its dims in another order."""
        is_kernel = self.ours.endswith((".kernel", f".{ROUTER}")) and self.ours != "head.kernel"
        return is_kernel or self.expert is not None

    @property
    def their_shape(self) -> tuple[int, ...]:
        """Hugging Face's shape of it, with the rows of others."""
        shape = self.part_shape
        return shape if self.num_rows is None else (self.num_rows, *shape[1:])

    @property
    def part_shape(self) -> tuple[int, ...]:
        """Hugging Face's shape of it alone."""
        shape = self.shape if self.expert is None else self.shape[1:]
        return shape[::-1] if self.is_transposed else shape


def llama_pairs(config: LlamaConfig, record: Architecture | None = None) -> Iterator[TensorPair]:
    """Yield all tensors of a model, of which some are one of Hugging Face's, or one of ours.

    These follow each other. Without a record, the names are those of most architectures.

    >>> config = LlamaConfig(
    ...     num_layers=1, dim=4, num_heads=2, num_kv_heads=1, hidden=6, sequence=8, vocabulary=9
    ... )
    >>> [(pair.ours, pair.shape) for pair in llama_pairs(config)][4]
    ('blocks.0.attention.key.kernel', (4, 2))
    """
    table = (config.vocabulary, config.dim)
    yield TensorPair("model.embed_tokens.weight", "embed.tokens", table)
    record = record or (QWEN3_MOE if config.experts else LLAMA)
    parts = [f"{part}." for part in config.parts] or [""]
    for layer in range(config.depth):
        number, part = divmod(layer, len(parts))
        for pair in _fused(config, record) if record.is_fused else _layer(config, record):
            yield replace(
                pair,
                theirs=f"model.layers.{layer}.{pair.theirs}",
                ours=f"blocks.{number}.{parts[part]}{pair.ours}",
            )
    yield TensorPair("model.norm.weight", "head.norm.scale", (config.dim,))
    if not config.tied:
        yield TensorPair(HEAD, "head.kernel", table)


def _layer(config: LlamaConfig, record: Architecture) -> Iterator[TensorPair]:
    norms = _NORMS
    if config.post_norms:
        norms = _GEMMA_NORMS if config.pre_norms else _POST_NORMS
    for their, our in norms.items():
        yield TensorPair(f"{their}.weight", f"{our}.scale", (config.dim,))
    for their, our in _PRODUCTS.items():
        if config.experts and our.startswith("mlp."):
            continue
        shape = _kernel_shape(config, our)
        yield TensorPair(f"{their}.weight", f"{our}.kernel", shape)
        if _has_bias(config, our):
            yield TensorPair(f"{their}.bias", f"{our}.bias", shape[1:])
    if config.qk_norm:
        widths = (
            (config.query_width, config.kv_width) if config.wide_qk_norm else (config.width,) * 2
        )
        for (their, our), width in zip(_HEAD_NORMS.items(), widths, strict=True):
            yield TensorPair(f"{their}.weight", f"{our}.scale", (width,))
    if config.experts:
        yield from _experts(config, record)


def _experts(config: LlamaConfig, record: Architecture) -> Iterator[TensorPair]:
    """Yield the router of a layer, and the kernels of its experts."""
    count, dim, hidden = config.experts, config.dim, config.hidden
    yield TensorPair(f"{record.experts['router']}.weight", ROUTER, (dim, count))
    for name, shape in (("gate", (dim, hidden)), ("up", (dim, hidden)), ("down", (hidden, dim))):
        for expert in range(count):
            theirs = f"{record.experts[name].format(expert)}.weight"
            yield TensorPair(theirs, f"moe.{name}", (count, *shape), expert=expert)


def _fused(config: LlamaConfig, record: Architecture) -> Iterator[TensorPair]:
    """Yield the tensors of a layer whose products of the same input are one tensor."""
    pairs = tuple(_layer(config, record))
    totals: dict[str, int] = {}
    names = [_fused_name(pair.theirs) for pair in pairs]
    for name, pair in zip(names, pairs, strict=True):
        totals[name] = totals.get(name, 0) + pair.part_shape[0]
    firsts = dict.fromkeys(totals, 0)
    for name, pair in zip(names, pairs, strict=True):
        is_part = name != pair.theirs
        num_rows = totals[name] if is_part else None
        yield replace(pair, theirs=name, first=firsts[name], num_rows=num_rows)
        firsts[name] += pair.part_shape[0]


def _fused_name(theirs: str) -> str:
    module, _, leaf = theirs.rpartition(".")
    return f"{_FUSED.get(module, module)}.{leaf}"


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


def known_pairs(
    config: LlamaConfig, present: Mapping[str, object], record: Architecture
) -> tuple[TensorPair, ...]:
    """Return all tensors of a model, which must be those present.

    Raises:
        CheckpointError: one is missing, or there is another.
    """
    if config.depth * max(1, config.experts) > len(present):  # before that many names are made
        raise CheckpointError(
            f"`num_hidden_layers` ({config.depth:,}) needs several tensors in each layer"
            + (f", and {config.experts:,} experts have their own" if config.experts else "")
            + f", and there are {len(present):,} in all; give the files that belong to its "
            "`config.json`"
        )
    pairs = tuple(llama_pairs(config, record))
    known = {pair.theirs for pair in pairs}
    ignored = {name for name in present if name.endswith(_BUFFER)}
    # Tied, some files hold the table twice: `check_tied` compares them.
    if config.tied:
        ignored.add(HEAD)
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
    part = range(pair.first, pair.first + pair.part_shape[0])
    if pair.is_transposed:
        yield np.ascontiguousarray(finite(files.part(pair.theirs, part), name=pair.theirs).T)
        return
    if pair.num_rows is not None:
        yield finite(files.part(pair.theirs, part), name=pair.theirs)
        return
    for rows in files.rows(pair.theirs):
        yield finite(rows, name=pair.theirs)


def to_theirs(parts: Mapping[str, np.ndarray], pairs: Sequence[TensorPair]) -> np.ndarray:
    """Return one of Hugging Face's tensors, of all of ours that it holds: `pieces_of` inverted."""
    ours = [parts[p.ours] if p.expert is None else parts[p.ours][p.expert] for p in pairs]
    rows = [a.T if pair.is_transposed else a for a, pair in zip(ours, pairs, strict=True)]
    return np.ascontiguousarray(rows[0] if len(rows) == 1 else np.concatenate(rows))


def check_tied(files: TensorFiles, table: str) -> None:
    """Check that a head beside a tied table equals it.

    Raises:
        CheckpointError: it is another one, of which versions of `transformers` take one or the
            other.
    """
    if HEAD not in files.files:
        return
    check_shape(files.shape(HEAD), files.shape(table), name=HEAD)
    for head, rows in zip(files.rows(HEAD), files.rows(table), strict=True):
        if not np.array_equal(head, rows):
            raise CheckpointError(
                f"`tie_word_embeddings` in `config.json` is true, and `{HEAD}` differs from "
                f"`{table}`: set it to false if the head is meant, or remove that tensor"
            )
