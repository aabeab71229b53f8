"""The computations of a stage in a training step, as pure functions that can be jitted."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Float, Int

from jaxpipe.runtime.data.dataset.dataset import InputShape
from jaxpipe.runtime.stage.calls import Scalar, StageSpec
from jaxpipe.runtime.stage.gradient_buckets import Buckets, pack, unpack
from jaxpipe.runtime.stage.master_weights import (
    MasterState,
    has_masters,
    updated,
    with_master_weights,
)
from jaxpipe.runtime.stage.model import Model, Parameters, Tuned, hidden_shape
from jaxpipe.runtime.stage.optimizer import clip_factor, decay_mask, stage_optimizer
from jaxpipe.runtime.stage.optimizer_config import OptimizerConfig
from jaxpipe.runtime.stage.split_backward import Carried, Crossing, SplitBackward, split_backward
from jaxpipe.runtime.stage.stage import Input, Output, Stage, Targets, microbatch_key
from jaxpipe.runtime.stage.trained import held, overlay, trained
from jaxpipe.runtime.stage.vjp import Residuals, backward_from_residuals, forward_with_residuals
from jaxpipe.runtime.stage.zero1 import OptimizerShard, ShardedParameters
from jaxpipe.schedule import Bucket

Cotangent = (
    Float[Array | np.ndarray, "..."]
    | tuple[Float[Array | np.ndarray, "..."], Float[Array | np.ndarray, ""]]
)
"""Of the output: a pair where the output is one, the second that of the loss."""
Position = Int[Array | np.ndarray, "2"]
"""The step, and the microbatch counted over all replicas: the dropout key depends on both."""


_ANY_OPTIMIZER = OptimizerConfig()


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """The sizes of a run, in samples, tokens and steps, and its seed.

    `labelled` is the shape of the input of a sample with a label; None if samples are windows of
    tokens, in which each token is the target of the one before it. In `packed` samples, documents
    are kept apart.
    """

    microbatch: int
    sequence: int
    batch: int
    num_steps: int
    seed: int
    labelled: InputShape | None = None
    packed: bool = False

    @property
    def inputs(self) -> jax.ShapeDtypeStruct:
        """The inputs of a microbatch."""
        if self.labelled is None:
            return jax.ShapeDtypeStruct((self.microbatch, self.sequence), jnp.int32)
        shape = (self.microbatch, *self.labelled.shape)
        return jax.ShapeDtypeStruct(shape, self.labelled.dtype)

    @property
    def targets(self) -> jax.ShapeDtypeStruct:
        """The targets of a microbatch."""
        one = (self.sequence,) if self.labelled is None else ()
        return jax.ShapeDtypeStruct((self.microbatch, *one), jnp.int32)

    @property
    def num_targets(self) -> int:
        """The targets of a step, over which the loss is a mean."""
        return self.batch * (self.sequence if self.labelled is None else 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class StageFunctions:
    """The functions of one stage: `StageCalls`, before they are compiled.

    `params` are in the parameter dtype, as are `gradients`; `compute` is their copy in the dtype of
    the activations, made once a step. `scales_loss` tells whether the loss is scaled, `masked`
    whether some targets do not count; `update` takes a scale of the gradients then. With `shards`,
    one for each segment, moments exist only for their pieces of the parameters. Where parameters
    are frozen, gradients and moments exist for the others alone (`jaxpipe.runtime.stage.trained`).
    """

    stage: Stage
    work: Work
    optimizer: OptimizerConfig
    scales_loss: bool = False
    masked: bool = False
    shards: tuple[OptimizerShard, ...] = ()

    @property
    def spec(self) -> StageSpec:
        """The position of the stage, and the shapes at its boundaries."""
        return StageSpec(
            is_first=self.stage.is_first,
            is_last=self.stage.is_last,
            layout=self.stage.layout,
            received=self.stage.received(self.hidden()),
            activation=self.activation(),
            loss_cotangent=self.loss_cotangent(),
            sharded=self.sharded,
            masked=self.masked,
            reads_tokens=self.stage.reads_tokens,
        )

    @property
    def sharded(self) -> ShardedParameters | None:
        """How replicas shard the optimizer of the stage, if they do and there is what to shard."""
        if not self.shards:
            return None
        parameters = ShardedParameters(
            shards=self.shards,
            segments=self.stage.segments,
            shapes=self._shapes(),
            tied=self.stage.has_tied_bucket,
        )
        return parameters if any(parameters.sizes) else None

    @property
    def starts(self) -> "StageFunctions":
        """The functions with nothing but what `init` reads: of any batch and number of steps."""
        return replace(self, work=self._any_batch, scales_loss=False, masked=False)

    @property
    def reduces(self) -> "StageFunctions":
        """The functions with nothing but what `pack` and `square_norm` read.

        Its optimizer, batch and number of steps are any: its `init`, `update` and `join` are not
        to be called.
        """
        return StageFunctions(stage=self.stage, work=self._any_batch, optimizer=_ANY_OPTIMIZER)

    @property
    def computes(self) -> "StageFunctions":
        """The functions with nothing but what forwards and backwards read.

        Those of `reduces`, whatever the partitions of other replicas: its `pack` is not to be
        called either.
        """
        stage = replace(self.stage, segments=(), shares_embedding=False)
        return replace(self.reduces, stage=stage)

    @property
    def _any_batch(self) -> Work:
        return replace(self.work, batch=self.work.microbatch, num_steps=1)

    @property
    def merges(self) -> bool:
        """Whether `cast` computes more than another format of the parameters."""
        return isinstance(self.stage.model, Tuned) and self.stage.model.merges

    def activation(self) -> jax.ShapeDtypeStruct:
        """Return the shape of what one microbatch sends to the next stage."""
        return self.stage.sent(self.hidden())

    def hidden(self) -> jax.ShapeDtypeStruct:
        """Return the shape of the input of a layer, of one microbatch."""
        return hidden_shape(self.stage.model, self.work.inputs)

    def init(self) -> tuple[Parameters, optax.OptState]:
        """Return fresh parameters and moments."""
        params = self.stage.init(seed=self.work.seed)
        return params, self._transformation().init(self._owned(self._trained(params)))

    def cast(self, params: Parameters) -> Parameters:
        """Return the parameters in the compute dtype, in the structure that `loop` reads."""
        return self.stage.spread(self._rounded(params))

    def cast_layer(self, blocks: Parameters, number: Int[Array, ""]) -> Parameters:
        """Return "blocks" with the layer at an index of the stacked ones, as `cast` does."""
        one = jax.tree.map(lambda leaf: jax.lax.dynamic_slice_in_dim(leaf, number, 1), blocks)
        return jax.tree.map(lambda leaf: leaf[0], self._rounded({"blocks": one}))

    def zeros(self) -> Parameters:
        """Return gradients of zero."""
        shapes = self._trained(jax.eval_shape(self.stage.spread, self._initial()))
        return jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes)

    def forward(
        self, compute: Parameters, x: Input, targets: Targets, position: Position
    ) -> tuple[Output, Residuals]:
        """Return the output for one microbatch, and the residuals of its vjp.

        The backward also differentiates with respect to the input; at the first stage, to that of
        its first layer.
        """
        key = microbatch_key(seed=self.work.seed, step=position[0], microbatch=position[1])
        weights = self._trained(compute)
        if self.stage.is_first:
            # Samples have no gradient. That of the input of the first layer is computed instead, so
            # that the input half of a split backward reaches through all layers on this stage too.
            offset = jnp.zeros_like(self.hidden())
            return forward_with_residuals(
                lambda weights, offset: self.stage.apply(
                    overlay(compute, weights), x, targets, key, offset=offset
                ),
                weights,
                offset,
                beside=compute,
            )
        return forward_with_residuals(
            lambda weights, x: self.stage.apply(overlay(compute, weights), x, targets, key),
            weights,
            x,
            beside=compute,
        )

    def evaluate(self, compute: Parameters, x: Input, targets: Targets) -> Array:
        """Return the output without dropout, and no residuals."""
        return self.stage.evaluate(compute, x, targets)

    def backward(
        self,
        compute: Parameters,
        residuals: Residuals,
        cotangent: Cotangent,
        gradients: Parameters,
    ) -> tuple[Array | None, Parameters]:
        """Return the gradient of the input (None for tokens) and the accumulated `gradients`.

        `cotangent` is the gradient of the output: that of a loss is one over the targets of a step,
        which makes the loss a mean over them, times the scale of the loss if it has one.
        """
        of_weights, of_input = backward_from_residuals(residuals, compute, cotangent)
        return self._to_stage_before(of_input), add_gradients(gradients, of_weights)

    def split_backward(
        self,
        compute: Parameters,
        residuals: Residuals,
        cotangent: Cotangent | jax.ShapeDtypeStruct | tuple[jax.ShapeDtypeStruct, ...],
    ) -> SplitBackward:
        """Return the backward in two halves, given its arguments or their shapes."""
        return split_backward(backward_from_residuals, residuals, compute, cotangent)

    def backward_input(
        self, compute: Parameters, residuals: Residuals, cotangent: Cotangent
    ) -> tuple[Array | None, Carried]:
        """Return the gradient of the input (None for tokens), and what `backward_weight` reads.

        Under `jit` this would copy the residuals that are carried: compile `input_half` instead.
        """
        split = self.split_backward(compute, residuals, cotangent)
        of_input, crossing = self.input_half(split, compute, residuals, cotangent)
        return of_input, split.carry(residuals, cotangent, crossing)

    def input_half(
        self, split: SplitBackward, compute: Parameters, residuals: Residuals, cotangent: Cotangent
    ) -> tuple[Array | None, Crossing]:
        """Return the gradient of the input (None for tokens), and what crosses to the other half.

        The first stage computes as much here as the others: everything but the products for its
        weights, and the embedding. Schedules that split backwards assume halves of about equal
        length.
        """
        of_input, crossing = split.input_part(residuals, compute, cotangent)
        return self._to_stage_before(of_input), crossing

    def backward_weight(
        self, compute: Parameters, carried: Carried, gradients: Parameters
    ) -> Parameters:
        """Return the accumulated `gradients` of the weights."""
        assert carried.split is not None, "carried between halves that are compiled, or by none"
        return add_gradients(gradients, carried.split.weight_part(carried, compute))

    def loss_cotangent(self) -> Float[Array, ""]:
        """Return the cotangent of the loss: one over the targets of a step."""
        # In the format of a loss, as `Model` has it.
        dtype = jnp.promote_types(self.activation().dtype, jnp.float32)
        return jnp.asarray(1 / self.work.num_targets, dtype)

    def pack(self, gradients: Parameters) -> Buckets:
        """Return the gradients as one vector per reduction."""
        stage = self.stage
        stacked = stage.stack(gradients)
        stacked = self._held(stacked, at=jax.tree.map(jnp.zeros_like, stacked))
        return pack(stacked, tied=stage.has_tied_bucket, segments=stage.segments)

    def square_norm(self, buckets: Buckets) -> Float[Array, ""]:
        """Return the contribution to the squared global norm; a tied embedding counts once."""
        # Both ends have the same reduced gradient of a tied embedding: the first stage counts it.
        squares = [
            vector
            for name, vectors in buckets.items()
            if self.stage.is_first or name is Bucket.STAGE
            for vector in vectors
        ]
        return jnp.stack([jnp.vdot(vector, vector) for vector in squares]).sum()

    def update(
        self,
        params: Parameters,
        moments: optax.OptState,
        buckets: Buckets,
        square_norm: Scalar,
        scale: Scalar | None = None,
    ) -> tuple[Parameters, optax.OptState]:
        """Clip by the global norm, given its square, and apply the optimizer to what is owned.

        Gradients are divided by `scale`, where it is given; the norm is not.
        """
        stage, old = self.stage, self._trained(params)
        tree = unpack(buckets, old, tied=stage.has_tied_bucket, segments=stage.segments)
        gradients = self._owned(tree)
        factor = clip_factor(self.optimizer, square_norm)
        # One multiplication for clipping and unscaling; `square_norm` is unscaled already.
        factor = factor if scale is None else factor / scale
        has_masters = isinstance(moments, MasterState)
        clipped = jax.tree.map(
            lambda leaf: (leaf * factor).astype(jnp.float32 if has_masters else leaf.dtype),
            gradients,
        )
        owned = self._owned(old)
        changes, state = self._transformation().update(clipped, moments, owned)
        if self.sharded is not None:
            return updated(owned, changes, state), state
        # Weight decay would change frozen layers, too, which have no gradient.
        new = self._held(updated(old, changes, state), at=old)
        if isinstance(state, MasterState):
            assert isinstance(moments, MasterState), moments
            state = state._replace(master=self._held(state.master, at=moments.master))
        return overlay(params, new), state

    def join(self, vectors: Sequence[Array | np.ndarray], updated: Parameters) -> Parameters:
        """Return the trained parameters from the gathered vectors and this replica's own pieces."""
        sharded = self.sharded
        assert sharded is not None, "the optimizer is not sharded: parameters are whole already"
        return sharded.join(vectors, updated)

    def _rounded(self, params: Parameters) -> Parameters:
        dtype, model = self.activation().dtype, self.stage.model
        # Merged before it is rounded: an adapter may be small next to its kernel.
        params = model.merged(params) if isinstance(model, Tuned) else params
        return jax.tree.map(lambda leaf: leaf.astype(dtype), params)

    def _owned(self, tree: Parameters) -> Parameters:
        """Return what this replica updates of the parameters, or of a tree like them."""
        return tree if self.sharded is None else self.sharded.owned(tree)

    def _trained(self, tree: Parameters) -> Parameters:
        return trained(self.stage.model, tree)

    def _held(self, tree: Parameters, *, at: Parameters) -> Parameters:
        return held(self.stage.model, tree, layers=self.stage.layers, at=at)

    def _to_stage_before(self, of_input: Array) -> Array | None:
        return None if self.stage.is_first else of_input

    def _transformation(self) -> optax.GradientTransformation:
        # Pieces are flat: their shapes no longer tell a matrix from a bias.
        shapes = self._shapes()
        decayed = decay_mask(self.optimizer)(shapes) if self.shards else None
        inner = stage_optimizer(self.optimizer, num_steps=self.work.num_steps, decayed=decayed)
        return with_master_weights(inner) if has_masters(self.optimizer, shapes) else inner

    def _shapes(self) -> Parameters:
        """Return the shapes of the trained parameters."""
        return self._trained(self._initial())

    def _initial(self) -> Parameters:
        """Return the shapes of all parameters."""
        stage = self.stage
        return _fresh.eval_shape(stage.model, stage.layers, stage.is_first, stage.is_last)


# JAX keeps what it has traced by function and static arguments: shapes that many functions of all
# stages ask for are found once in a process.
@partial(jax.jit, static_argnums=(0, 1, 2, 3))
def _fresh(model: Model, layers: range, embed: bool, head: bool) -> Parameters:
    return model.init(jax.random.key(0), layers=layers, embed=embed, head=head)


def add_gradients(gradients: Parameters, more: Parameters) -> Parameters:
    """Return the sum in the dtype of `gradients`."""
    # Accumulated in the parameter dtype: sums in the compute dtype would lose small gradients.
    return jax.tree.map(lambda a, g: a + g.astype(a.dtype), gradients, more)
