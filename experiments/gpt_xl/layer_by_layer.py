"""One device trains a model layer by layer: it holds the parameters, and the gradient of one layer.

::

    forward   embed ─► layer 0 ─► layer 1 ─► ... ─► loss      inputs of layers are kept
    backward  embed ◄─ layer 0 ◄─ layer 1 ◄─ ... ◄─ head      each updates, and drops its gradient

`jaxpipe.verify.one_device` holds all gradients several times over. Here no norm is clipped, since
a layer updates before the others have gradients, and the optimizer keeps no moments.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxpipe.runtime.job import Job
from jaxpipe.runtime.stage.model import Parameters
from jaxpipe.runtime.stage.optimizer import stage_optimizer

_Pair = tuple[np.ndarray, np.ndarray]


@dataclass(slots=True)
class Layered:
    """Parameters apart by layer; each of `layers` is stacked over one layer."""

    ends: Parameters
    layers: list[Parameters]


class LayerByLayer:
    """The whole model of a job whose replicas have equal microbatches, on one device."""

    def __init__(self, job: Job) -> None:
        self._job = job
        self._input = jax.jit(job.model.embed)
        self._block = jax.jit(self._blocked)
        self._head = jax.jit(self._head_gradients)
        self._of_block = jax.jit(self._block_gradients, donate_argnums=3)
        self._of_input = jax.jit(self._input_gradients)
        self._update = jax.jit(self._updated, donate_argnums=0)

    def start(self) -> Layered:
        """Return fresh parameters: those of the ranks."""
        model = self._job.model
        init = partial(model.init, layers=range(model.num_layers), embed=True, head=True)
        params = jax.jit(init)(jax.random.key(self._job.run.seed))
        blocks = params.pop("blocks")
        layers = [
            jax.tree.map(lambda leaf, n=number: leaf[n : n + 1], blocks)
            for number in range(model.num_layers)
        ]
        return Layered(ends=params, layers=layers)

    def step(self, state: Layered, *, step: int) -> float:
        """Update the parameters; return the mean loss before. Steps count from 0."""
        key = jax.random.fold_in(jax.random.key(self._job.run.seed), step)
        parts = list(self._microbatches(step))
        keys = [jax.random.fold_in(key, number) for number in range(len(parts))]
        weight = 1 / sum(targets.size for _, targets in parts)
        inputs = [self._forward(state, part[0], key) for part, key in zip(parts, keys, strict=True)]
        loss, of_ends, cotangents = 0.0, jax.tree.map(jnp.zeros_like, state.ends), []
        for x, (_, targets) in zip(inputs, parts, strict=True):
            lost, of_head, of_x = self._head(state.ends, x.pop(), targets, weight)
            loss += float(lost)
            of_ends = _sum(of_ends, of_head)
            cotangents.append(of_x)
        for number in reversed(range(self._job.model.num_layers)):
            layer = state.layers[number]
            gradients = jax.tree.map(jnp.zeros_like, layer)
            for part, x in enumerate(inputs):
                key = jax.random.fold_in(keys[part], number)
                of_output = cotangents[part]
                gradients, of_x = self._of_block(layer, x.pop(), of_output, gradients, key)
                cotangents[part] = of_x
            changed = self._update({"blocks": layer}, {"blocks": gradients}, step)
            state.layers[number] = changed["blocks"]
        for (samples, _), key, of_x in zip(parts, keys, cotangents, strict=True):
            of_ends = _sum(of_ends, self._of_input(state.ends, samples, key, of_x))
        state.ends = self._update(state.ends, of_ends, step)
        return loss * weight

    def _microbatches(self, step: int) -> Iterator[_Pair]:
        """Yield the samples and targets of each microbatch, by its number over all replicas."""
        job = self._job
        samples = job.data.train_samples(
            seed=job.run.seed, step=step, batch=job.train.batch, position=job.position
        )
        for replica, pipeline in enumerate(job.plan.pipelines):
            share = job.plan.rows(replica)
            for first in range(share.start, share.stop, pipeline.microbatch):
                rows = slice(first, first + pipeline.microbatch)
                yield samples.inputs[rows], samples.targets[rows]

    def _forward(self, state: Layered, samples: np.ndarray, key: Any) -> list[jax.Array]:
        """Return the input of each layer, and of the head."""
        x = self._input(state.ends, samples, jax.random.fold_in(key, self._job.model.num_layers))
        inputs = [x]
        for number, layer in enumerate(state.layers):
            inputs.append(self._block(layer, inputs[-1], jax.random.fold_in(key, number)))
        return inputs

    def _blocked(self, layer: Parameters, x: Any, key: Any) -> Any:
        return self._job.model.block(jax.tree.map(lambda leaf: leaf[0], layer), x, key)

    def _head_gradients(
        self, ends: Parameters, x: Any, targets: Any, weight: Any
    ) -> tuple[Any, Parameters, Any]:
        model = self._job.model
        lost, backward = jax.vjp(lambda ends, x: model.loss(ends, x, targets), ends, x)
        return lost, *backward(jnp.asarray(weight, lost.dtype))

    def _block_gradients(
        self, layer: Parameters, x: Any, of_output: Any, gradients: Parameters, key: Any
    ) -> tuple[Parameters, Any]:
        _, backward = jax.vjp(lambda layer, x: self._blocked(layer, x, key), layer, x)
        of_layer, of_x = backward(of_output)
        return jax.tree.map(jnp.add, gradients, of_layer), of_x

    def _input_gradients(self, ends: Parameters, samples: Any, key: Any, of_x: Any) -> Parameters:
        key = jax.random.fold_in(key, self._job.model.num_layers)
        return jax.vjp(lambda ends: self._job.model.embed(ends, samples, key), ends)[1](of_x)[0]

    def _updated(self, params: Parameters, gradients: Parameters, step: Any) -> Parameters:
        optimizer = stage_optimizer(self._job.optimizer, num_steps=self._job.train.steps)
        state = jax.tree.map(
            # The only leaves are counts of updates: there are no moments.
            lambda leaf: jnp.full_like(leaf, step),
            optimizer.init(params),
        )
        changes, _ = optimizer.update(gradients, state, params)
        return jax.tree.map(jnp.add, params, changes)


def _sum(one: Parameters, other: Parameters) -> Parameters:
    return jax.tree.map(jnp.add, one, other)
