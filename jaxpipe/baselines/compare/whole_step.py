"""The step of SPMD systems: model and optimizer of the pipeline, the whole batch at once."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from jaxpipe.baselines.autoshard.spmd import initial_state, train_step
from jaxpipe.runtime.job import Job
from jaxpipe.runtime.stage.model import Parameters
from jaxpipe.runtime.stage.optimizer import clip_factor, stage_optimizer
from jaxpipe.runtime.stage.optimizer_config import OptimizerConfig
from jaxpipe.schedule import Remat


def whole_step(
    job: Job, *, microbatches: int = 1, optimizer: optax.GradientTransformation | None = None
) -> tuple[Callable[..., Any], tuple[Any, Any, Any]]:
    """Return the step, and the shapes of its state, tokens and targets; the state is in float32.

    By default, the optimizer is that of the pipeline.
    """
    optimizer = optimizer or optimizer_of(job)
    params = _shapes(job)
    state = {"params": params, "optimizer": jax.eval_shape(optimizer.init, params)}
    is_full = job.train.remat is Remat.FULL
    step = train_step(job.model, optimizer, remat=is_full, microbatches=microbatches)
    return step, (state, *_batch_shapes(job))


def whole_batch(job: Job, *, step: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the inputs and targets of a step of all replicas, in the order of the pipeline."""
    read = job.data.train_samples(seed=job.run.seed, step=step, batch=job.train.batch)
    return read.inputs, read.targets


def _batch_shapes(job: Job) -> tuple[jax.ShapeDtypeStruct, jax.ShapeDtypeStruct]:
    """Return the shapes of `whole_batch`."""
    batch, shape = job.train.batch, job.data.labelled_input
    if shape is None:
        tokens = jax.ShapeDtypeStruct((batch, job.sequence), jnp.int32)
        return tokens, tokens
    inputs = jax.ShapeDtypeStruct((batch, *shape.shape), shape.dtype)
    return inputs, jax.ShapeDtypeStruct((batch,), jnp.int32)


def optimizer_of(job: Job) -> optax.GradientTransformation:
    """Return the optimizer of the pipeline: clipping by the global norm, then the rule."""
    # By leaf, as in the pipeline: layers are not stacked here, so kernels have two dims or more.
    decayed = jax.tree.map(lambda leaf: leaf.ndim >= 2, _shapes(job))
    return optax.chain(
        _clipped(job.optimizer),
        stage_optimizer(job.optimizer, num_steps=job.train.steps, decayed=decayed),
    )


def _shapes(job: Job) -> Parameters:
    """Return the shapes of the parameters, a tree for each layer."""

    def state(key: Any) -> Parameters:
        return initial_state(job.model, optax.identity(), key, dtype="float32")

    return jax.eval_shape(state, jax.random.key(job.run.seed))["params"]


def _clipped(config: OptimizerConfig) -> optax.GradientTransformation:
    def clip(gradients: Any, _params: Any = None) -> Any:
        # Not optax's clipping: with the pipeline's own factor, losses can be equal.
        square_norm = sum(jnp.sum(jnp.square(leaf)) for leaf in jax.tree.leaves(gradients))
        factor = clip_factor(config, jnp.asarray(square_norm))
        return jax.tree.map(lambda leaf: leaf * factor, gradients)

    return optax.stateless(clip)
