"""The layers of one stage as a pure function, and the rematerialisation of their activations."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import pairwise
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, Integer

from jaxpipe.attention_calls import AttentionCalls, offered_calls
from jaxpipe.runtime.config import Loop
from jaxpipe.runtime.stage.context import Tokens, in_parts
from jaxpipe.runtime.stage.gradient_buckets import concatenated
from jaxpipe.runtime.stage.mesh import ONE_DEVICE, StageLayout
from jaxpipe.runtime.stage.model import (
    Bottlenecked,
    Model,
    Parameters,
    WithLoss,
    bottlenecks_of,
    equal_layers,
    model_of_layer,
)
from jaxpipe.runtime.stage.placed import (
    Places,
    SampleParts,
    has_places,
    model_at,
    segment_positions,
)
from jaxpipe.schedule import Remat

Input = (
    Int[Array | np.ndarray, "microbatch seq"]
    | Integer[Array | np.ndarray, "microbatch height width channels"]
    | Float[Array | np.ndarray, "microbatch seq received"]
)
"""Samples, or an activation; at a bottleneck it has fewer numbers than the input of a layer."""
Targets = (
    Int[Array | np.ndarray, "microbatch seq"]
    | Int[Array | np.ndarray, " microbatch"]
    | SampleParts
    | None
)
"""What the last stage reads; of packed samples and behind bottlenecks, what others read, too."""
Output = Float[Array, "microbatch seq sent"] | Float[Array, ""] | WithLoss
"""An activation; of the last stage the loss; of others whose layers add to the loss, a pair."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """Consecutive layers of a model, with the embedding if first, the head and loss if last.

    ::

        first                                   last
        tokens -> embed -> block -> block ─┬─> block -> block -> head -> loss <- targets
                                       activation

    At a bottleneck (`jaxpipe.runtime.stage.model.Bottlenecked`) between stages, the activation is
    narrow. The blocks of its parameters are stacked over the layers, and scanned, or come from
    `spread`. `segments` are the layers of the parts whose gradients are reduced apart, by default
    one part.
    With `shares_embedding`, a stage of another replica holds a tied embedding as well, also if this
    is the only stage of its own. `layout` is that over the devices of its rank.
    """

    model: Model
    index: int
    num_stages: int
    layers: range
    remat: Remat = Remat.NONE
    loop: Loop = Loop.UNROLLED
    segments: tuple[int, ...] = ()
    shares_embedding: bool = False
    layout: StageLayout = ONE_DEVICE

    @property
    def is_first(self) -> bool:
        """Whether the stage reads samples."""
        return self.index == 0

    @property
    def is_last(self) -> bool:
        """Whether the stage computes the loss."""
        return self.index == self.num_stages - 1

    @property
    def has_tied_bucket(self) -> bool:
        """Whether another stage holds the same token embedding, with a gradient of its own."""
        is_shared = self.num_stages > 1 or self.shares_embedding
        return self.model.tied and is_shared and (self.is_first or self.is_last)

    @property
    def reads_tokens(self) -> bool:
        """Whether a bottleneck before one of its layers reads tokens that are not its input."""
        return not self.is_first and any(after in self.layers for after in self._bottlenecks)

    def sent(self, hidden: jax.ShapeDtypeStruct) -> jax.ShapeDtypeStruct:
        """Return the shape of what leaves the stage, given that of the input of a layer."""
        return self._at_boundary(hidden, after=self.layers.stop)

    def received(self, hidden: jax.ShapeDtypeStruct) -> jax.ShapeDtypeStruct:
        """Return the shape of what enters the stage, given that of the input of a layer."""
        return self._at_boundary(hidden, after=self.layers.start)

    def _at_boundary(self, hidden: jax.ShapeDtypeStruct, *, after: int) -> jax.ShapeDtypeStruct:
        width = self._bottlenecks.get(after, hidden.shape[-1])
        return jax.ShapeDtypeStruct((*hidden.shape[:-1], width), hidden.dtype)

    @property
    def _bottlenecks(self) -> Mapping[int, int]:
        return bottlenecks_of(self.model)

    def init(self, *, seed: int) -> Parameters:
        """Return fresh parameters: they depend on the seed, never on the partition of layers."""
        key = jax.random.key(seed)
        return self.model.init(key, layers=self.layers, embed=self.is_first, head=self.is_last)

    def spread(self, params: Parameters) -> Parameters:
        """Return the parameters in the structure of `loop`: unrolled layers have one tree each.

        A slice within a compiled function is one copy for each microbatch, and another one among
        its residuals: slicing here, once a step, avoids both. What has no layers stays as it is.
        """
        if self.loop is Loop.SCAN or "blocks" not in params:
            return params
        layer_numbers = range(len(self.layers))
        layers = tuple(
            jax.tree.map(lambda leaf, i=i: leaf[i], params["blocks"]) for i in layer_numbers
        )
        return {**params, "blocks": layers}

    def stack(self, params: Parameters) -> Parameters:
        """Return the inverse of `spread`, for parameters or gradients."""
        if self.loop is Loop.SCAN:
            return params
        stacked = jax.tree.map(
            lambda *leaf: concatenated([layer[None] for layer in leaf]), *params["blocks"]
        )
        return {**params, "blocks": stacked}

    def apply(
        self,
        params: Parameters,
        x: Input,
        targets: Targets,
        key: Array | None,
        *,
        offset: Array | None = None,
    ) -> Output:
        """Return the output activation of the stage; of the last stage, the summed loss.

        `x` are samples at the first stage and activations elsewhere; only the last stage reads
        `targets`, but all read the segments of packed samples. `key` is that of the step and
        microbatch; None turns dropout off. The `offset` is added to the input of the first layer:
        zeros, whose gradient is that of this input where `x` are samples, which have none.

        What layers add to the loss belongs to the loss of their own stage: the last one adds it,
        others return it next to the activation.
        """
        tokens = _tokens(x, targets, offset)
        if self.layout.num_parts > 1:
            return in_parts(self.layout, self._of_part, params, tokens)
        return self._whole(tokens)._output(params, tokens, key)

    def evaluate(self, params: Parameters, x: Input, targets: Targets) -> Array:
        """Return the output without dropout, and without what layers add to the training loss."""
        tokens = _tokens(x, targets, None)
        if self.layout.num_parts > 1:
            return in_parts(self.layout, self._of_part, params, tokens)
        return self._whole(tokens)._evaluated(params, tokens)

    def logits(
        self, params: Parameters, inputs: Input
    ) -> Float[Array, "batch seq vocabulary"] | Float[Array, "batch classes"]:
        """Return the logits, without dropout, if this stage is the whole model."""
        assert self.num_stages == 1, self
        return self.model.head(params, self._hidden(params, _tokens(inputs, None, None), None)[0])

    def _whole(self, tokens: Tokens) -> "Stage":
        """Return the stage whose tokens read tokens of their own segment alone, if they have."""
        if tokens.segments is None:
            return self
        positions = segment_positions(tokens.segments)
        return self._at(Places(positions=positions, segments=tokens.segments))

    def _of_part(self, params: Parameters, tokens: Tokens, places: Places) -> Array:
        # Configurations refuse dropout, and layers that add to the loss, over parts of sequences.
        return self._at(places)._evaluated(params, tokens)

    def _at(self, places: Places) -> "Stage":
        return replace(self, model=model_at(self.model, places))

    def _output(self, params: Parameters, tokens: Tokens, key: Array | None) -> Output:
        hidden, added = self._hidden(params, tokens, key)
        if not self.is_last:
            return hidden if added is None else (hidden, added)
        of_head = self._of_head(params, hidden, tokens)
        return of_head if added is None else of_head + added

    def _evaluated(self, params: Parameters, tokens: Tokens) -> Array:
        hidden, _ = self._hidden(params, tokens, None)
        return self._of_head(params, hidden, tokens) if self.is_last else hidden

    def _of_head(self, params: Parameters, hidden: Array, tokens: Tokens) -> Array:
        assert tokens.targets is not None, "the last stage reads targets"
        return self.model.loss(params, hidden, tokens.targets)

    def _hidden(
        self, params: Parameters, tokens: Tokens, key: Array | None
    ) -> tuple[Array, Array | None]:
        """Return the activation after all layers, and what these add to the loss, if they do."""
        hidden = tokens.x
        if self.is_first:
            # Layers use the numbers below `num_layers` for their keys; the embedding the next one.
            hidden = self.model.embed(params, hidden, _fold(key, self.model.num_layers))
        hidden = hidden if tokens.offset is None else hidden + tokens.offset
        known, total = tokens.x if self.is_first else tokens.known, None
        for layers in self._parts():
            hidden = self._widened(params, hidden, known, after=layers.start)
            blocks = self._blocks_of(params["blocks"], layers)
            hidden, added = self._blocks(blocks, layers, hidden, key)
            total = added if total is None or added is None else total + added
            hidden = self._narrowed(params, hidden, after=layers.stop)
        return hidden, total

    def _parts(self) -> list[range]:
        """Return the layers that are equal and that no bottleneck parts, together."""
        places = [after for after in self._bottlenecks if after in self.layers[1:]]
        edges = (self.layers.start, *places, self.layers.stop)
        between = [range(start, stop) for start, stop in pairwise(edges)]
        return [part for layers in between for part in equal_layers(self.model, layers)]

    def _blocks_of(self, blocks: Parameters | tuple, layers: range) -> Parameters | tuple:
        if layers == self.layers:
            return blocks
        rows = slice(layers.start - self.layers.start, layers.stop - self.layers.start)
        if isinstance(blocks, tuple):
            return blocks[rows]
        return jax.tree.map(lambda leaf: leaf[rows], blocks)

    def _widened(self, params: Parameters, x: Array, known: Array | None, *, after: int) -> Array:
        if after not in self._bottlenecks:
            return x
        assert known is not None, "a stage behind a bottleneck reads tokens"
        assert isinstance(self.model, Bottlenecked), self.model
        return self.model.widen(params, x, known, after)

    def _narrowed(self, params: Parameters, x: Array, *, after: int) -> Array:
        if after not in self._bottlenecks:
            return x
        assert isinstance(self.model, Bottlenecked), self.model
        return self.model.narrow(params, x, after)

    def _block(self, number: int, *, scanned: bool) -> Callable:
        model = model_of_layer(self.model, number)
        # The places of tokens are arrays of the function that is being traced: for it alone.
        if scanned or has_places(model):
            return rematerialise(model.block, self.remat, scanned=scanned)
        return traced_once(model, self.remat, offered_calls())

    def _blocks(
        self, blocks: Parameters | tuple, layers: range, x: Array, key: Array | None
    ) -> tuple[Array, Array | None]:
        scanned = isinstance(blocks, dict)
        block = self._block(layers.start, scanned=scanned)

        def step(x: Array, layer: tuple[Parameters, Array | int]) -> tuple[Array, Array | None]:
            params, number = layer
            x = self.layout.between_layers(x)
            # The number of the layer in the model, not in the stage: dropout is independent of the
            # partition of layers.
            with self.layout.visible():
                output = block(params, x, _fold(key, number))
            return output if isinstance(output, tuple) else (output, None)

        if scanned:
            x, added = jax.lax.scan(step, x, (blocks, jnp.asarray(layers)))
            return self.layout.between_layers(x), None if added is None else added.sum()
        total = None
        for layer in zip(blocks, layers, strict=True):
            x, added = step(x, layer)
            total = added if total is None or added is None else total + added
        return self.layout.between_layers(x), total


@lru_cache(maxsize=256)
def traced_once(model: Model, remat: Remat, calls: AttentionCalls | None) -> Callable:
    """Return the layer of a model, which JAX traces once for all equal layers of a process.

    XLA inlines its calls before it optimizes: they share no executable. With other `calls` of
    attention on offer it is traced again. A test that replaces code
    of layers calls `traced_once.cache_clear()`.
    """
    block = rematerialise(model.block, remat, scanned=False)
    del calls

    # A function of its own: JAX keeps what it has traced by function, and equal methods are one.
    def layer(params: Parameters, x: Array, key: Array | None) -> Any:
        return block(params, x, key)

    return jax.jit(layer)


def microbatch_key(
    *, seed: int, step: Array | np.integer | int, microbatch: Array | np.integer | int
) -> Array:
    """Return the key of one microbatch of one step; `microbatch` counts over all replicas."""
    return jax.random.fold_in(jax.random.fold_in(jax.random.key(seed), step), microbatch)


def _tokens(x: Input, targets: Targets, offset: Array | None) -> Tokens:
    parts = targets if isinstance(targets, SampleParts) else SampleParts(targets=targets)
    segments, known, labels = (
        None if part is None else jnp.asarray(part)
        for part in (parts.segments, parts.tokens, parts.targets)
    )
    return Tokens(x=jnp.asarray(x), targets=labels, offset=offset, segments=segments, known=known)


def _fold(key: Array | None, number: Array | int) -> Array | None:
    return None if key is None else jax.random.fold_in(key, number)


def rematerialise(block: Callable, remat: Remat, *, scanned: bool) -> Callable:
    """Return `block` with the rematerialisation policy `remat`.

    A model marks its attention output for `Remat.DOTS` with `checkpoint_name(x, "attention")`.
    Outside of a scan, common subexpression elimination must be prevented: it would keep what should
    be computed again.
    """
    if remat is Remat.NONE:
        return block
    if remat is Remat.FULL:
        return jax.checkpoint(block, prevent_cse=not scanned)
    policies = jax.checkpoint_policies
    keep = policies.save_from_both_policies(
        policies.dots_with_no_batch_dims_saveable, policies.save_only_these_names("attention")
    )
    return jax.checkpoint(block, prevent_cse=not scanned, policy=keep)
