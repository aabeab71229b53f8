"""Map GPT-2's tensors between the names of Hugging Face and those of our checkpoints.

::

    h.3.attn.c_attn.weight (dim, 3 dim)   ◄──►   blocks.3.attention.qkv.kernel (dim, 3, dim)
    wte.weight                            ◄──►   embed.tokens
    ln_f.weight                           ◄──►   head.norm.scale

Both keep kernels as (inputs, outputs) and queries, keys and values side by side, so nothing is
transposed. A language model has "transformer." before each of its names, but for `lm_head.weight`.
"""

from collections.abc import Iterator, Mapping

import numpy as np

from jaxpipe.errors import CheckpointError
from jaxpipe.interchange.checked_tensor import checked
from jaxpipe.models import GptConfig

_PREFIX = "transformer."
_HEAD = "lm_head.weight"
_BUFFERS = (".attn.bias", ".attn.masked_bias")
"""The causal mask, which old files hold next to the parameters."""

_BLOCK = {
    "ln_1.weight": "norm1.scale",
    "ln_1.bias": "norm1.bias",
    "attn.c_attn.weight": "attention.qkv.kernel",
    "attn.c_attn.bias": "attention.qkv.bias",
    "attn.c_proj.weight": "attention.project.kernel",
    "attn.c_proj.bias": "attention.project.bias",
    "ln_2.weight": "norm2.scale",
    "ln_2.bias": "norm2.bias",
    "mlp.c_fc.weight": "mlp.up.kernel",
    "mlp.c_fc.bias": "mlp.up.bias",
    "mlp.c_proj.weight": "mlp.down.kernel",
    "mlp.c_proj.bias": "mlp.down.bias",
}
_ENDS = {
    "wte.weight": "embed.tokens",
    "wpe.weight": "embed.positions",
    "ln_f.weight": "head.norm.scale",
    "ln_f.bias": "head.norm.bias",
}


def tensors_of_gpt2(tensors: Mapping[str, np.ndarray], config: GptConfig) -> dict[str, np.ndarray]:
    """Return Hugging Face's tensors under the names of our checkpoints, in float32.

    Raises:
        CheckpointError: a tensor is missing, unknown, of another shape, or not finite.
    """
    if config.num_layers > len(tensors):  # before that many names are made
        raise CheckpointError(
            f"`n_layer` ({config.num_layers:,}) needs {len(_BLOCK)} tensors in each layer, and "
            f"there are {len(tensors):,} tensors in all; give the files that belong to its "
            "`config.json`"
        )
    plain = {name.removeprefix(_PREFIX): tensor for name, tensor in tensors.items()}
    known = dict(_names(config))
    ignored = {name for name in plain if name.endswith(_BUFFERS)}
    # Tied, some files hold the table twice.
    if config.tied:
        ignored.add(_HEAD)
    unknown = sorted(plain.keys() - known.keys() - ignored)
    missing = sorted(known.keys() - plain.keys())
    if unknown or missing:
        verb, names = ("lacks", missing) if missing else ("also has", unknown)
        raise CheckpointError(
            f"`n_layer` ({config.num_layers}) needs {len(known)} tensors, and this GPT-2 {verb} "
            f"{', '.join(names[:4])}; give the files that belong to its `config.json`"
        )
    return {
        ours: _shaped(plain[theirs], shape_of(ours, config), name=theirs)
        for theirs, ours in known.items()
    }


def to_gpt2_tensors(tensors: Mapping[str, np.ndarray], config: GptConfig) -> dict[str, np.ndarray]:
    """Return a checkpoint's tensors as Hugging Face names and shapes them: the inverse.

    >>> import numpy as np
    >>> config = GptConfig(num_layers=1, dim=2, num_heads=1, sequence=2, vocabulary=3)
    >>> ours = {name: np.zeros(shape_of(name, config)) for _, name in _names(config)}
    >>> to_gpt2_tensors(ours, config)["transformer.h.0.attn.c_attn.weight"].shape
    (2, 6)
    """
    return {theirs: to_gpt2_tensor(tensors[ours], ours) for ours, theirs in their_names(config)}


def their_names(config: GptConfig) -> Iterator[tuple[str, str]]:
    """Yield our name and that of a language model of Hugging Face, for each tensor."""
    for theirs, ours in _names(config):
        # `lm_head.weight` is outside of the "transformer." part.
        yield ours, theirs if theirs == _HEAD else _PREFIX + theirs


def _names(config: GptConfig) -> Iterator[tuple[str, str]]:
    yield from _ENDS.items()
    for layer in range(config.num_layers):
        for theirs, ours in _BLOCK.items():
            yield f"h.{layer}.{theirs}", f"blocks.{layer}.{ours}"
    if not config.tied:
        yield _HEAD, "head.kernel"


def shape_of(name: str, config: GptConfig) -> tuple[int, ...]:
    """Return the shape of a parameter, by our name."""
    dim, hidden = config.dim, config.hidden
    # Without the layer's number: all layers have the same shapes.
    last = name.removeprefix("blocks.").partition(".")[2] if name.startswith("blocks.") else name
    shapes: dict[str, tuple[int, ...]] = {
        "embed.tokens": (config.vocabulary, dim),
        "embed.positions": (config.sequence, dim),
        "head.kernel": (config.vocabulary, dim),
        "attention.qkv.kernel": (dim, 3, dim),
        "attention.qkv.bias": (3 * dim,),
        "attention.project.kernel": (dim, dim),
        "mlp.up.kernel": (dim, hidden),
        "mlp.up.bias": (hidden,),
        "mlp.down.kernel": (hidden, dim),
    }
    return shapes.get(last, (dim,))  # every other tensor is a vector of the width


def _shaped(tensor: np.ndarray, shape: tuple[int, ...], *, name: str) -> np.ndarray:
    flat = (shape[0], shape[1] * shape[2]) if len(shape) == 3 else shape
    return checked(tensor, flat, name=name).reshape(shape)


def to_gpt2_tensor(tensor: np.ndarray, name: str) -> np.ndarray:
    """Return one of our tensors as Hugging Face's, by our name."""
    values = np.asarray(tensor, np.float32)
    # (dim, 3, dim) is (dim, 3 * dim) in memory: queries, keys, values side by side.
    return values.reshape(len(values), -1) if name.endswith("qkv.kernel") else values
