"""The oracle of outer loops at run time: every island of a run in one process, on one device.

The whole model of each island takes its inner steps with `optax`, without pipelines, replicas,
transports or slices.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from jaxpipe.config import Config
from jaxpipe.models import build_model
from jaxpipe.runtime.checkpoint import flatten, restore
from jaxpipe.runtime.data import open_dataset, sample
from jaxpipe.runtime.data.order.samples import Windows
from jaxpipe.runtime.stage.optimizer import learning_rate, matrices
from jaxpipe.runtime.stage.optimizer_config import OptimizerConfig
from jaxpipe.runtime.stage.stage import Stage

Tensors = dict[str, np.ndarray]


@dataclass(kw_only=True)
class InnerTraining:
    """Inner steps on one device; `rows[m]` are those of island m in the batch of a step.

    `losses[m]` are those of its steps so far, in nats per token. The moments of each island stay
    here, from one call to the next.
    """

    config: Config
    rows: list[range]
    moments: dict[int, Any] = field(default_factory=dict)
    losses: dict[int, list[float]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        model = build_model(self.config.model)
        layers = range(model.num_layers)
        self.whole = Stage(model=model, index=0, num_stages=1, layers=layers)
        self.params = _initial(self.whole, self.config.run.seed)
        self.dataset = open_dataset(Path(self.config.data.folders[0]))

    @property
    def start(self) -> Tensors:
        """The initial parameters by name."""
        return flatten(self.params, first_layer=0)

    def step(self, local: Tensors, island: int, step: int) -> Tensors:
        """Return the parameters of an island after one inner step, without dropout."""
        tokens = self._tokens(step, self.rows[island])
        params = restore(self.params, local, first_layer=0)
        loss, gradients = _value_and_grad(self.whole, params, tokens)
        optimizer, num_steps = self.config.optimizer, self.config.train.steps
        moments = self.moments.get(island)
        if moments is None:
            moments = _adamw(optimizer, num_steps).init(self.params)
        params, self.moments[island] = _update(optimizer, num_steps, params, moments, gradients)
        self.losses.setdefault(island, []).append(float(loss))
        return flatten(params, first_layer=0)

    def eval_loss(self, anchor: Tensors) -> float:
        """Return the held-out loss of the first evaluation batch."""
        train = self.config.train
        sequence = self.config.model.sequence
        held_out = Windows(tokens=self.dataset.eval, sequence=sequence)
        tokens = held_out.read(np.arange(train.batch)).rows
        single = {name: each.astype(np.float32) for name, each in anchor.items()}
        return float(_jitted_loss(self.whole, restore(self.params, single, first_layer=0), tokens))

    def _tokens(self, step: int, rows: range) -> np.ndarray:
        train = self.config.train
        return sample(
            self.dataset.train,
            seed=self.config.run.seed,
            step=step,
            batch=train.batch,
            sequence=self.config.model.sequence,
            rows=rows,
        )


# Compiled once for all islands and runs of a model, whichever rows they have.
@partial(jax.jit, static_argnums=(0, 1))
def _initial(whole: Stage, seed: int) -> Any:
    return whole.init(seed=seed)


def _loss(whole: Stage, params: Any, tokens: Any) -> jax.Array:
    total = whole.apply(params, tokens[:, :-1], tokens[:, 1:], None)
    assert isinstance(total, jax.Array)
    return total / (tokens.shape[0] * (tokens.shape[1] - 1))


_jitted_loss = jax.jit(_loss, static_argnums=0)
_value_and_grad = jax.jit(jax.value_and_grad(_loss, argnums=1), static_argnums=0)


@partial(jax.jit, static_argnums=(0, 1))
def _update(
    optimizer: OptimizerConfig, num_steps: int, params: Any, moments: Any, gradients: Any
) -> tuple[Any, Any]:
    clip = optax.clip_by_global_norm(optimizer.clip_norm)
    clipped, _ = clip.update(gradients, clip.init(params))
    changes, moments = _adamw(optimizer, num_steps).update(clipped, moments, params)
    return jax.tree.map(jnp.add, params, changes), moments


def _adamw(given: OptimizerConfig, num_steps: int) -> optax.GradientTransformation:
    return optax.adamw(
        learning_rate(given, num_steps=num_steps),
        b1=given.beta1,
        b2=given.beta2,
        eps=given.epsilon,
        weight_decay=given.weight_decay,
        mask=matrices,
    )


def flat_step(inner: InnerTraining) -> Callable[[np.ndarray, int, int], np.ndarray]:
    """Return the inner step over one vector of all parameters, in the order of `start`."""
    shapes = {name: each.shape for name, each in inner.start.items()}

    def step(vector: np.ndarray, island: int, number: int) -> np.ndarray:
        return packed(inner.step(unpacked(vector.astype(np.float32), shapes), island, number))

    return step


def packed(tensors: Tensors) -> np.ndarray:
    """Return all values as one vector, in float64."""
    return np.concatenate([each.reshape(-1) for each in tensors.values()]).astype(np.float64)


def unpacked(vector: np.ndarray, shapes: dict[str, tuple[int, ...]]) -> Tensors:
    """Return the tensors of a vector."""
    sizes = [int(np.prod(shape)) for shape in shapes.values()]
    parts = np.split(vector, np.cumsum(sizes)[:-1])
    return {
        name: part.reshape(shape) for (name, shape), part in zip(shapes.items(), parts, strict=True)
    }
