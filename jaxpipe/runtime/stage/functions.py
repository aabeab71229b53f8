"""What a rank does with its stage in a step, as pure functions that can be jitted."""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Float, Int

from jaxpipe.runtime.config import OptimizerConfig
from jaxpipe.runtime.stage.gradient_buckets import Buckets, merge, pack, split, unpack
from jaxpipe.runtime.stage.model import Parameters
from jaxpipe.runtime.stage.optimizer import adamw, clip_factor, matrices
from jaxpipe.runtime.stage.split_backward import Carried, Crossing, SplitBackward, split_backward
from jaxpipe.runtime.stage.stage import Input, Output, Stage, Targets, microbatch_key
from jaxpipe.runtime.stage.vjp import Residuals, backward_from_residuals, forward_with_residuals
from jaxpipe.runtime.stage.zero1 import OptimizerShard, joined, size_of, whole_tree
from jaxpipe.schedule import Bucket

Position = Int[Array, "2"]
"""The step, and the microbatch counted over all replicas: what dropout depends on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """The sizes of a run, in samples, tokens and steps, and its seed."""

    microbatch: int
    sequence: int
    batch: int
    num_steps: int
    seed: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StageFunctions:
    """The functions of one stage.

    `params` are in the parameter dtype, as are `gradients`; `compute` is their copy in the dtype
    of the activations, made once a step. `scales_loss` tells whether `update` is given a scale.
    With a `share`, moments are those of its pieces of the parameters alone.
    """

    stage: Stage
    work: Work
    optimizer: OptimizerConfig
    scales_loss: bool = False
    share: OptimizerShard | None = None

    def activation(self) -> jax.ShapeDtypeStruct:
        """Return what crosses from one stage to the next for one microbatch."""

        def embed(tokens: Array) -> Array:
            key = jax.random.key(self.work.seed)
            params = self.stage.model.init(key, layers=range(1), embed=True, head=False)
            return self.stage.model.embed(params, tokens, None)

        shape = (self.work.microbatch, self.work.sequence)
        return jax.eval_shape(embed, jax.ShapeDtypeStruct(shape, jnp.int32))

    def init(self) -> tuple[Parameters, optax.OptState]:
        """Return fresh parameters and moments."""
        params = self.stage.init(seed=self.work.seed)
        return params, self._transformation().init(self.held(params))

    def cast(self, params: Parameters) -> Parameters:
        """Return the parameters in the compute dtype, as the stage's loop wants them."""
        dtype = self.activation().dtype
        return self.stage.spread(jax.tree.map(lambda leaf: leaf.astype(dtype), params))

    def zeros(self) -> Parameters:
        """Return gradients to which nothing has been added yet."""
        params = jax.eval_shape(lambda: self.stage.spread(self.stage.init(seed=self.work.seed)))
        return jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), params)

    def forward(
        self, compute: Parameters, x: Input, targets: Targets, position: Position
    ) -> tuple[Output, Residuals]:
        """Return the stage's output for one microbatch, and what its backward needs.

        The backward differentiates by the input too; at the first stage, by that of its layers.
        """
        key = microbatch_key(seed=self.work.seed, step=position[0], microbatch=position[1])
        if self.stage.is_first:
            activation = self.activation()
            tap = jnp.zeros(activation.shape, activation.dtype)
            return forward_with_residuals(
                lambda params, tap: self.stage.apply(params, x, targets, key, tap=tap), compute, tap
            )
        return forward_with_residuals(
            lambda params, x: self.stage.apply(params, x, targets, key), compute, x
        )

    def evaluate(self, compute: Parameters, x: Input, targets: Targets) -> Output:
        """Return the stage's output without dropout, and keep nothing."""
        return self.stage.apply(compute, x, targets, None)

    def backward(
        self, compute: Parameters, residuals: Residuals, cotangent: Array, gradients: Parameters
    ) -> tuple[Array | None, Parameters]:
        """Return the gradient of the stage's input (None for tokens), and add that of its weights.

        `cotangent` is the gradient of the output: at the last stage one over the tokens of a step,
        which makes the loss a mean over them, times the scale of the loss if it has one.
        """
        of_weights, of_input = backward_from_residuals(residuals, compute, cotangent)
        return self._to_stage_before(of_input), add_gradients(gradients, of_weights)

    def split(
        self,
        compute: Parameters,
        residuals: Residuals,
        cotangent: Array | jax.ShapeDtypeStruct,
    ) -> SplitBackward:
        """Return the backward in two parts, given its arguments or their shapes."""
        return split_backward(backward_from_residuals, residuals, compute, cotangent)

    def backward_input(
        self, split: SplitBackward, compute: Parameters, residuals: Residuals, cotangent: Array
    ) -> tuple[Array | None, Crossing]:
        """Return the gradient of the stage's input (None for tokens), and what crosses.

        The first stage does as much here as the others: all but the products for its weights, and
        the embedding. Schedules that split backwards count on parts of about equal length.
        """
        of_input, crossing = split.input_part(residuals, compute, cotangent)
        return self._to_stage_before(of_input), crossing

    def backward_weight(
        self, split: SplitBackward, compute: Parameters, carried: Carried, gradients: Parameters
    ) -> Parameters:
        """Add the gradients of the weights to `gradients`."""
        return add_gradients(gradients, split.weight_part(carried, compute))

    def loss_cotangent(self) -> Float[Array, ""]:
        """Return what the backward of the last stage starts from."""
        return jnp.float32(1 / (self.work.batch * self.work.sequence))

    def pack(self, gradients: Parameters) -> Buckets:
        """Return the gradients as they travel."""
        return pack(self.stage.stack(gradients), shared=self.stage.shares_embedding)

    def square_norm(self, buckets: Buckets) -> Float[Array, ""]:
        """Return this stage's part of the squared global norm; a tied embedding counts once."""
        own = [b for name, b in buckets.items() if self.stage.is_first or name is Bucket.STAGE]
        return jnp.stack([jnp.vdot(bucket, bucket) for bucket in own]).sum()

    def update(
        self,
        params: Parameters,
        moments: optax.OptState,
        buckets: Buckets,
        square_norm: Float[Array, ""],
        scale: Float[Array, ""] | None = None,
    ) -> tuple[Parameters, optax.OptState]:
        """Clip by the global norm, given its square, and apply the optimizer to what is held.

        Where the loss is scaled, so are the gradients, by `scale`; the norm is not.
        """
        gradients = self.held(unpack(buckets, params, shared=self.stage.shares_embedding))
        factor = clip_factor(self.optimizer, square_norm)
        factor = factor if scale is None else factor / scale
        clipped = jax.tree.map(lambda each: (each * factor).astype(each.dtype), gradients)
        held = self.held(params)
        changes, moments = self._transformation().update(clipped, moments, held)
        return jax.tree.map(jnp.add, held, changes), moments

    def held(self, tree: Parameters) -> Parameters:
        """Return what of the parameters, or of a tree like them, this replica updates."""
        if self.share is None:
            return tree
        parts = self.parts(tree)
        return merge({**parts, Bucket.STAGE: self.share.pieces(parts[Bucket.STAGE])})

    def join(self, flat: Array | np.ndarray, held: Parameters) -> Parameters:
        """Return the parameters that the pieces of all replicas are together; `held` is one's own.

        The same for moments.
        """
        like = self.parts(self._shapes())[Bucket.STAGE]
        return merge({**self.parts(held), Bucket.STAGE: whole_tree(flat, like)})

    def own(self, held: Parameters) -> np.ndarray:
        """Return the pieces of this replica as a vector, on the host."""
        return joined(self.parts(held)[Bucket.STAGE])

    def parts(self, tree: Parameters) -> dict[Bucket, Parameters]:
        """Return what replicas share out, and a tied embedding apart, which each holds whole."""
        return split(tree, shared=self.stage.shares_embedding)

    def num_shared_out(self) -> int:
        """Return how many numbers replicas share out."""
        return size_of(self.parts(self._shapes())[Bucket.STAGE])

    def _to_stage_before(self, of_input: Array) -> Array | None:
        return None if self.stage.is_first else of_input

    def _transformation(self) -> optax.GradientTransformation:
        decayed = None if self.share is None else matrices(self._shapes())
        return adamw(self.optimizer, num_steps=self.work.num_steps, decayed=decayed)

    def _shapes(self) -> Parameters:
        return jax.eval_shape(lambda: self.stage.init(seed=self.work.seed))


def add_gradients(gradients: Parameters, more: Parameters) -> Parameters:
    """Return the sum in the dtype of `gradients`."""
    return jax.tree.map(lambda a, g: a + g.astype(a.dtype), gradients, more)
