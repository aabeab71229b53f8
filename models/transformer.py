"""What the families share: an embedding, layers and a head, without parameters of their own.

::

    tokens ─► embedding ─► layer ─► layer ─► ... ─► head ─► logits, or their cross-entropy
                 │           ▲                       ▲
                 │           └ by_token, gathered    │
                 └──────────── tied ─────────────────┘

A family names the constructors of its three modules (`Parts`). A model is their graphs, built once,
into which a call merges the parameters that it is given. Outside, parameters are nested dicts of
arrays; the leaves of "blocks" have one more dim at the front, the layers.
"""

import math
from abc import abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from typing import Any, NamedTuple, TypeAlias, TypeVar

import jax
import jax.numpy as jnp
from flax import nnx
from jax.sharding import PartitionSpec
from jaxtyping import Array, Float, Int, Integer, Key

from jaxpipe.models.kernels.accumulation import accumulation_dtype
from jaxpipe.models.kernels.cached_attention import CachedAttention
from jaxpipe.models.kernels.cross_entropy import capped, cross_entropy
from jaxpipe.models.kernels.placed_attention import TokenPlaces, placed_attention

Parameters: TypeAlias = dict[str, Any]
Hidden: TypeAlias = Float[Array, "batch seq dim"]
Inputs: TypeAlias = Int[Array, "batch seq"] | Integer[Array, "batch height width channels"]
Part: TypeAlias = Callable[..., nnx.Module]
"""A constructor: takes a configuration and `rngs`, and returns a module with fresh parameters."""

_Result = TypeVar("_Result")

INIT_STD = 0.02
"""The standard deviation of fresh kernels and embeddings."""

EMBED, HEAD, BLOCKS = range(3)
"""What is folded into the key of each part; `BLOCKS` is followed by the layer's number."""


class Parts(NamedTuple):
    """The constructors of the modules of a model.

    Args:
        embedding: called with inputs, a key or None, and the positions of tokens or None.
        block: called with hidden states, a key or None, and another attention or None; returns the
            hidden states and what the layer adds to the training loss, or None.
        head: a `Head`.
    """

    embedding: Part
    block: Part
    head: Part


@dataclass(frozen=True, slots=True)
class Transformer:
    """A model of the parts that its configuration says.

    Parameters may come in `param_dtype`, or already cast to `compute_dtype`. Cast ahead, once a
    step: the residuals of a jitted `jax.vjp` then hold no second copy of the kernels.
    """

    config: Any
    # Derived from `config`: no part of equality or of the hash, which `jit` needs.
    _embedding: nnx.GraphDef[Any] = field(init=False, repr=False, compare=False)
    _block: nnx.GraphDef[Any] = field(init=False, repr=False, compare=False)
    _head: nnx.GraphDef["Head"] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        parts = self._parts()
        object.__setattr__(self, "_embedding", _graph(parts.embedding, self.config))
        object.__setattr__(self, "_block", _graph(parts.block, self.config))
        object.__setattr__(self, "_head", _graph(parts.head, self.config))

    @abstractmethod
    def _parts(self) -> Parts:
        """Return the constructors of the modules."""

    @property
    @abstractmethod
    def split(self) -> Mapping[str, int]:
        """The dim of each parameter that tensor parallelism splits: heads, hidden, vocabulary."""

    @property
    def num_layers(self) -> int:
        """The number of layers of the whole model; of pairs, where a layer is a pair."""
        return self.config.num_layers

    @property
    def sequence(self) -> int:
        """The longest sequence, in tokens."""
        return self.config.sequence

    @property
    def vocabulary(self) -> int:
        """The number of different tokens."""
        return self.config.vocabulary

    @property
    def tied(self) -> bool:
        """Whether the head multiplies by the token embedding."""
        return self.config.tied

    @property
    def can_decode(self) -> bool:
        """Whether a token reads earlier ones alone, so that their keys and values can be kept."""
        return True

    @property
    def switch_length(self) -> int:
        """The longest text whose layers compute as in short ones; 0 where length changes nothing.

        When a text outgrows it, all of its keys and values change.
        """
        return 0

    def of_layer(self, number: int) -> "Transformer":
        """Return the model whose layers all are as that of this number: itself, if all are equal.

        Layers of all kinds have the same parameters. `block` is that of equal layers.
        """
        del number
        return self

    def equal_layers(self, layers: range) -> list[range]:
        """Return consecutive layers in parts, of which each has equal ones."""
        kinds = [self.of_layer(number) for number in layers]
        edges = [
            n for n, one, other in zip(layers[1:], kinds, kinds[1:], strict=False) if one != other
        ]
        return [range(*part) for part in pairwise((layers.start, *edges, layers.stop))]

    def init(self, key: Key[Array, ""], *, layers: range, embed: bool, head: bool) -> Parameters:
        """Return fresh parameters, in `param_dtype`, of consecutive layers and of the ends asked.

        Each leaf depends on `key` and on its own layer's number alone, bit by bit. With a tied
        head and `head` but not `embed`, the part "embed" holds the "tokens" leaf alone; without
        layers there is no part "blocks".

        Raises:
            ValueError: `layers` is not consecutive layers of this model.
        """
        config, parts = self.config, self._parts()
        if layers.step != 1 or layers.start < 0 or layers.stop > config.num_layers:
            raise ValueError(
                f"`layers` must be consecutive and within range(0, {config.num_layers}), "
                f"not {layers}"
            )
        params: Parameters = {}
        if embed or (head and config.tied):
            params["embed"] = _draw_end(parts.embedding, config, jax.random.fold_in(key, EMBED))
            # Drawn whole, then cut: the tied table equals that of the first stage bit by bit.
            if not embed:
                params["embed"] = {"tokens": params["embed"]["tokens"]}
        if layers:
            numbers = jnp.arange(layers.start, layers.stop)
            of_blocks = jax.random.fold_in(key, BLOCKS)
            params["blocks"] = _draw_blocks(parts.block, config, of_blocks, numbers)
        if head:
            params["head"] = _draw_end(parts.head, config, jax.random.fold_in(key, HEAD))
        return params

    def embed(
        self,
        params: Parameters,
        inputs: Inputs,
        key: Key[Array, ""] | None,
        positions: Int[Array, "batch seq"] | None = None,
    ) -> Hidden:
        """Return the input of the first layer, in `compute_dtype`; no key, no dropout.

        A token outside the vocabulary makes its row NaN. Tokens are at `positions`, by default
        counted from 0 in each text; pictures have none.

        Raises:
            ValueError: there are more tokens than `sequence`, or pictures have another shape.
        """
        return nnx.merge(self._embedding, params["embed"])(inputs, key, positions)

    def block(
        self, layer: Parameters, x: Hidden, key: Key[Array, ""] | None
    ) -> Hidden | tuple[Hidden, Float[Array, ""]]:
        """Apply one layer, given one slice of `params["blocks"]`; no key, no dropout.

        If it adds to the training loss, return a pair of its output and that loss.
        """
        output, loss = self._merged(layer)(x, key)
        return output if loss is None else (output, loss)

    def cached_block(self, layer: Parameters, x: Hidden, cached: CachedAttention) -> Hidden:
        """Apply one layer with another attention (`jaxpipe.models.decoder`)."""
        return self._merged(layer)(x, None, cached)[0]

    def placed_embed(
        self, params: Parameters, inputs: Inputs, key: Key[Array, ""] | None, places: TokenPlaces
    ) -> Hidden:
        """Return the input of the first layer, of tokens that do not lie in a row."""
        return self.embed(params, inputs, key, places.positions)

    def placed_block(
        self, layer: Parameters, x: Hidden, key: Key[Array, ""] | None, places: TokenPlaces
    ) -> Hidden:
        """Apply one layer to tokens that do not lie in a row."""
        return self._merged(layer)(x, key, placed_attention(places))[0]

    def _merged(self, layer: Parameters) -> Callable[..., tuple[Hidden, Any]]:
        assert self.of_layer(0) is self, "layers differ: `of_layer` has the model of each"
        return nnx.merge(self._block, layer)

    def head(
        self, params: Parameters, x: Hidden
    ) -> Float[Array, "batch seq vocabulary"] | Float[Array, "batch classes"]:
        """Return the logits, in float32."""
        return nnx.merge(self._head, params["head"])(x, self._tied_tokens(params))

    def loss(
        self,
        params: Parameters,
        x: Hidden,
        targets: Int[Array, "batch seq"] | Int[Array, " batch"],
    ) -> Float[Array, ""]:
        """Return the cross-entropy of the head in nats, summed over all targets, in float32.

        A target outside the vocabulary makes it NaN; those of -100 do not count.
        """
        head = nnx.merge(self._head, params["head"])
        return head.loss(x, self._tied_tokens(params), targets)

    def _tied_tokens(self, params: Parameters) -> Float[Array, "vocabulary dim"] | None:
        return params["embed"]["tokens"] if self.tied else None


class Head(nnx.Module):
    """A norm, then the logits: products with the tied embedding, or with a kernel of its own.

    Args:
        norm: the norm over the width.
        kernel: a row for each token or class; None if the embedding is tied.
        logits_bytes: memory that the logits may take in training [bytes].
        softcap: soft bound of the logits; 0 for none.
        labels: whether it reads the first position of a sequence alone, which has classes.
    """

    def __init__(
        self,
        norm: Callable[[Array], Array],
        kernel: nnx.Param[Array] | None,
        *,
        logits_bytes: int,
        softcap: float = 0.0,
        labels: bool = False,
    ) -> None:
        self.norm = norm
        self.logits_bytes = logits_bytes
        self.softcap = softcap
        self.labels = labels
        if kernel is not None:
            self.kernel = kernel

    def __call__(
        self, x: Hidden, tokens: Float[Array, "vocabulary dim"] | None
    ) -> Float[Array, "batch seq vocabulary"] | Float[Array, "batch classes"]:
        """Return the logits in float32; `tokens` is the embedding's table, None if not tied."""
        x, rows = self._operands(x, tokens)
        wide = accumulation_dtype(x.dtype)
        logits = jnp.einsum("...d,vd->...v", x, rows, preferred_element_type=wide)
        return capped(logits, self.softcap)

    def loss(
        self,
        x: Hidden,
        tokens: Float[Array, "vocabulary dim"] | None,
        targets: Int[Array, "batch seq"] | Int[Array, " batch"],
    ) -> Float[Array, ""]:
        """Return the cross-entropy in nats, summed over all targets, in float32."""
        x, rows = self._operands(x if self.labels else x.reshape(-1, x.shape[-1]), tokens)
        return cross_entropy(
            x, rows, targets.ravel(), logits_bytes=self.logits_bytes, softcap=self.softcap
        )

    def _operands(self, x: Array, tokens: Array | None) -> tuple[Array, Array]:
        rows = self.kernel[...] if tokens is None else tokens
        x = x[:, 0] if self.labels else x
        # Keeps `x`, not the normalised `x` with its statistics.
        x = jax.checkpoint(self.norm)(x)
        return x, rows.astype(x.dtype)


def table(rows: int, dim: int, rngs: nnx.Rngs) -> nnx.Param[Array]:
    """Return a fresh (rows, dim) table: one normal vector of `INIT_STD` per row."""
    return nnx.Param(nnx.initializers.normal(INIT_STD)(rngs.params(), (rows, dim)))


def look_up(
    rows: Float[Array, "vocabulary dim"], tokens: Int[Array, "batch seq"], *, sequence: int
) -> Hidden:
    """Return the vector of each token, in the format of `rows`.

    A token outside the vocabulary becomes NaN instead of another token, so that it is noticed.

    Raises:
        ValueError: there are more tokens than `sequence`.
    """
    seq = tokens.shape[1]
    if seq > sequence:
        raise ValueError(
            f"`sequence` must be at least the number of tokens, {seq}, not {sequence}; "
            "cut the tokens, or configure a longer `sequence`"
        )
    # Unlike `jnp.take`, which would count a negative token from the end.
    return rows.at[tokens].get(mode="fill", wrap_negative_indices=False)


def by_token(product: Callable[[Array], _Result], x: Hidden) -> _Result:
    """Return products that see (tokens, dim); what is kept for the backward is `x` itself.

    On the CPU, their backward is about a tenth faster than that of products with (batch, seq, dim).
    A mesh that divides sequences has no division of their concatenation: kept in one row, each
    device would hold all of it.
    """

    def of_tokens(x: Array) -> _Result:
        return product(gathered(x.reshape(-1, x.shape[-1])))

    # Products are not computed again: no gradient needs their result.
    return jax.checkpoint(of_tokens)(x)


def gathered(flat: Float[Array, "tokens dim"]) -> Float[Array, "tokens dim"]:
    """Return tokens that every device of the mesh's axis `tensor` has, if there is a mesh.

    The devices have their own heads of all tokens from here on. Without it, XLA may go on with all
    heads of their own tokens, and exchange scores.
    """
    if "data" not in jax.sharding.get_abstract_mesh().axis_names:
        return flat
    return jax.lax.with_sharding_constraint(flat, PartitionSpec("data"))


def residual_init_std(depth: int) -> float:
    """Return the standard deviation of fresh kernels that write to the residual stream.

    Smaller than `INIT_STD` by the root of their number, two in each of `depth` attention layers, so
    that the variance of the stream does not grow with the depth.
    """
    return INIT_STD / math.sqrt(2 * depth)


def _graph(part: Part, config: Any) -> nnx.GraphDef[Any]:
    # Shapes alone: no array is allocated.
    return nnx.graphdef(nnx.eval_shape(lambda: part(config, rngs=nnx.Rngs(0))))


@partial(jax.jit, static_argnums=(0, 1))
def _draw_end(part: Part, config: Any, key: Key[Array, ""]) -> Parameters:
    return _draw(part, config, key)


@partial(jax.jit, static_argnums=(0, 1))
def _draw_blocks(
    part: Part, config: Any, key: Key[Array, ""], numbers: Int[Array, " layers"]
) -> Parameters:
    # A loop, not vmap: each layer runs the same compiled body, so the cut cannot change a bit.
    return jax.lax.map(lambda n: _draw(part, config, jax.random.fold_in(key, n)), numbers)


def _draw(part: Part, config: Any, key: Key[Array, ""]) -> Parameters:
    # Drawn in float32 and then rounded: bfloat16 uniforms would give only 256 different values.
    state = nnx.state(part(config, rngs=nnx.Rngs(params=key)), nnx.Param)
    return jax.tree.map(lambda leaf: leaf.astype(config.param_dtype), nnx.to_pure_dict(state))
