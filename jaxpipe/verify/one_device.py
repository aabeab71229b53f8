"""One device: the loss, its gradient and the update, without pipeline, replicas and messages.

It knows a plan by its microbatches, since dropout and the balance of experts are those of a
microbatch, and by its codecs: between stages, and in sums over replicas. Everything else is written
from the definitions: the loss is the mean over the targets of a step that count, the norm is over
all trained parameters, a frozen parameter never changes. Layers, optimizer and learning rate are
those of the run.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from jaxpipe.collective import CodecKind
from jaxpipe.plan import Island
from jaxpipe.runtime.checkpoint import flatten
from jaxpipe.runtime.data import Samples
from jaxpipe.runtime.data.order.samples import IGNORED
from jaxpipe.runtime.job import Job
from jaxpipe.runtime.stage.loss_scale import adjust, initial_loss_scale
from jaxpipe.runtime.stage.model import Model, Parameters, Tuned, bottlenecks_of
from jaxpipe.runtime.stage.moments import moments_of
from jaxpipe.runtime.stage.optimizer import stage_optimizer
from jaxpipe.runtime.stage.optimizer_config import OptimizerConfig
from jaxpipe.runtime.stage.placed import Places, model_at, segment_positions
from jaxpipe.verify.coded_boundaries import CodedBoundaries
from jaxpipe.verify.coded_gradients import CodedGradients, ReplicaGradients
from jaxpipe.verify.device_layers import through_layers

Tensors = dict[str, np.ndarray]
"""By the names of a checkpoint."""
Entering = dict[int, np.ndarray]
"""What enters a layer, by the number of layers before it."""
_OfReplica = tuple[Parameters, Mapping[str, Any]]
"""Gradients of a replica, and those of its head alone of a tied embedding."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Microbatch:
    """The samples of a microbatch of a replica, by its number over all replicas."""

    number: int
    replica: int
    inputs: np.ndarray
    targets: np.ndarray
    segments: np.ndarray | None

    @property
    def arrays(self) -> tuple[Any, ...]:
        """What a compiled function takes: inputs, targets, segments and the replica."""
        return self.inputs, self.targets, self.segments, np.array(self.replica)

    @property
    def num_targets(self) -> int:
        """The targets that count."""
        return int(np.count_nonzero(self.targets != IGNORED))


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceStep:
    """What one device computes in a step, before its update.

    `hidden[number][layer]` is what enters a layer in a microbatch, the last one the head, at a
    bottleneck what it keeps; `of_hidden` is its gradient, in the loss that is a mean over the step.
    """

    loss: float
    num_targets: int
    norm: float
    gradients: Tensors
    tree: Parameters
    samples: np.ndarray
    hidden: dict[int, Entering]
    of_hidden: dict[int, Entering]


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceState:
    """Parameters and the state of the optimizer."""

    params: Parameters
    moments: optax.OptState

    def tensors(self) -> Tensors:
        """Return parameters and moments by their names."""
        tensors = flatten(self.params, first_layer=0)
        for moment, tree in moments_of(self.moments).items():
            tensors |= flatten(tree, first_layer=0, prefix=f"{moment}.")
        return tensors


class OneDevice:
    """The whole model of a job, and its samples; compiles once for each size of a microbatch."""

    def __init__(self, job: Job) -> None:
        self._job = job
        self._boundaries = CodedBoundaries(job)
        self._coded_gradients: dict[int, CodedGradients] = {}
        self._loss = jax.jit(jax.value_and_grad(self._summed, argnums=(0, 1, 2), has_aux=True))
        self._held_out = jax.jit(self._evaluated)
        self._embed = jax.jit(self._embedded)

    def start(self) -> DeviceState:
        """Return fresh parameters and moments."""
        params, moments = _started(*self._static, jax.random.key(self._job.run.seed))
        return DeviceState(params=params, moments=moments)

    def step(self, state: DeviceState, *, step: int, island: Island) -> DeviceStep:
        """Return loss and gradients of the replicas of an island; steps count from 0, in order."""
        job = self._job
        samples = job.data.train_samples(
            seed=job.run.seed, step=step, batch=job.train.batch, position=job.position
        )
        parts = list(self._microbatches(samples, island.replicas))
        num_targets = sum(part.num_targets for part in parts)
        factor = self._scale(step) / sum(part.targets.size for part in parts)
        key = jax.random.fold_in(jax.random.key(job.run.seed), step)
        table = self._table(state.params)
        loss, hidden, of_hidden = 0.0, {}, {}
        of_replicas: dict[int, _OfReplica] = {}
        for part in parts:
            offsets = {n: np.zeros(shape) for n, shape in self._entering_shapes(part).items()}
            key_of_part = jax.random.fold_in(key, part.number)
            (lost, inside), (of_params, of_table, of_offsets) = self._loss(
                state.params, table, offsets, part.arrays, key_of_part, factor
            )
            loss += float(lost)
            before = of_replicas.get(part.replica)
            of_replicas[part.replica] = _added(before, (of_params, of_table))
            hidden[part.number] = {n: np.asarray(entering) for n, entering in inside.items()}
            of_hidden[part.number] = {
                n: np.asarray(gradient) / max(num_targets, 1) for n, gradient in of_offsets.items()
            }
        total = self._total(list(of_replicas.values()), island, factor=factor, step=step)
        tree = jax.tree.map(lambda leaf: leaf / max(num_targets, 1), total)
        squares = sum(float(np.sum(leaf**2)) for leaf in jax.tree.leaves(tree))
        return DeviceStep(
            loss=loss / max(num_targets, 1),
            num_targets=num_targets,
            norm=float(np.sqrt(squares)),
            gradients=flatten(tree, first_layer=0),
            tree=tree,
            samples=samples.rows,
            hidden=hidden,
            of_hidden=of_hidden,
        )

    def update(self, state: DeviceState, result: DeviceStep, *, clip_norm: float) -> DeviceState:
        """Return the state after the update with clipped gradients."""
        factor = min(1.0, clip_norm / result.norm) if result.norm else 1.0
        params, moments = _updated(*self._static, state.params, state.moments, result.tree, factor)
        return DeviceState(params=params, moments=moments)

    def held_out_loss(self, state: DeviceState) -> float:
        """Return the mean loss over the targets of all held-out batches, without dropout."""
        job = self._job
        loss, num_targets = 0.0, 0
        for index in range(job.num_eval_batches):
            samples = job.data.eval_samples(index=index, batch=job.train.batch)
            for part in self._microbatches(samples, range(job.plan.num_replicas)):
                loss += float(self._held_out(state.params, part.arrays))
                num_targets += part.num_targets
        return loss / max(num_targets, 1)

    def _table(self, params: Parameters) -> Mapping[str, Any]:
        """Return a tied embedding for the head alone, where its two gradients are coded apart."""
        is_apart = self._has_coded_sums and self._job.model.tied and self._job.plan.shares_embedding
        return {"tokens": params["embed"]["tokens"]} if is_apart else {}

    @property
    def _has_coded_sums(self) -> bool:
        return self._job.comm.gradients is not CodecKind.NONE

    def _total(
        self,
        of_replicas: list[_OfReplica],
        island: Island,
        *,
        factor: float,
        step: int,
    ) -> Parameters:
        """Return the gradient of the loss of all replicas; that of what is frozen is 0."""
        masks = _mask(self._job.model, of_replicas[0][0])
        masked = [
            ReplicaGradients(
                tree=jax.tree.map(lambda mask, leaf: np.where(mask, leaf, 0), masks, tree),
                of_table=table,
            )
            for tree, table in of_replicas
        ]
        if not self._has_coded_sums:
            return jax.tree.map(lambda *leaves: sum(leaves), *(part.tree for part in masked))
        if island.number not in self._coded_gradients:
            self._coded_gradients[island.number] = CodedGradients(self._job, island)
        coded = self._coded_gradients[island.number]
        return coded.total(masked, factor=factor, loss_scale=self._scale(step))

    def _microbatches(self, samples: Samples, replicas: range) -> Iterator[Microbatch]:
        """Yield the consecutive rows that are a microbatch of one of some replicas."""
        plan = self._job.plan
        for replica in replicas:
            pipeline = plan.pipelines[replica]
            first, number = plan.rows(replica).start, plan.first_microbatch(replica)
            for _ in range(pipeline.num_microbatches):
                rows = slice(first, first + pipeline.microbatch)
                yield Microbatch(
                    number=number,
                    replica=replica,
                    inputs=samples.inputs[rows],
                    targets=samples.targets[rows],
                    segments=None if samples.segments is None else samples.segments[rows],
                )
                first, number = rows.stop, number + 1

    def _scale(self, step: int) -> float:
        """Return the scale of the loss in a step, if no step before has overflowed."""
        config = self._job.loss_scale
        if config is None:
            return 1.0
        state = initial_loss_scale(config)
        for _ in range(step):
            state = adjust(config, state, finite=True)
        return state.scale

    def _entering_shapes(self, part: Microbatch) -> dict[int, tuple[int, ...]]:
        # Asked for each microbatch: JAX traces it once for each size.
        *lead, width = self._embed.eval_shape(part.inputs).shape
        ranks, num_layers = bottlenecks_of(self._job.model), self._job.model.num_layers
        return {number: (*lead, ranks.get(number, width)) for number in range(num_layers + 1)}

    def _embedded(self, inputs: Any) -> Any:
        return self._job.model.embed(self._fresh(), inputs, None)

    def _fresh(self) -> Parameters:
        key = jax.random.key(0)
        return self._job.model.init(key, layers=range(1), embed=True, head=False)

    def _summed(
        self,
        params: Parameters,
        table: Mapping[str, Any],
        offsets: dict[int, Any],
        part: tuple[Any, ...],
        key: Any,
        factor: Any,
    ) -> tuple[Any, Any]:
        """Return the loss of a microbatch, summed over its targets, and what enters layers.

        It is that before a codec, and offsets are added after it. The head reads `table`, if it is
        not empty, in place of that of `params`.
        """
        inputs, targets, segments, replica = part
        model, params = self._ready(params, segments)
        # Layers use the numbers below `num_layers` for their keys; the embedding the next one.
        x = model.embed(params, inputs, jax.random.fold_in(key, model.num_layers))
        crossed = partial(self._boundaries.crossed, replica=replica, factor=factor)
        x, inside, added = through_layers(model, params, (x, inputs), key, crossed, offsets)
        of_head = {**params, "embed": {**params["embed"], **table}}
        loss = model.loss(of_head, x + offsets[model.num_layers], targets) + added
        return loss, {**inside, model.num_layers: x}

    def _evaluated(self, params: Parameters, part: tuple[Any, ...]) -> Any:
        """Return the summed loss without dropout and without what layers add in training."""
        inputs, targets, segments, replica = part
        model, params = self._ready(params, segments)
        crossed = partial(self._boundaries.crossed, replica=replica, factor=1.0)
        offsets = dict.fromkeys(range(model.num_layers), jnp.zeros(()))
        x = model.embed(params, inputs, None)
        x, *_ = through_layers(model, params, (x, inputs), None, crossed, offsets)
        return model.loss(params, x, targets)

    def _ready(self, params: Parameters, segments: Any) -> tuple[Model, Parameters]:
        """Return the model at the places of its tokens, with adapters merged."""
        model = self._job.model
        params = model.merged(params) if isinstance(model, Tuned) else params
        if segments is None:
            return model, params
        segments = jnp.asarray(segments)
        places = Places(positions=segment_positions(segments), segments=segments)
        return model_at(model, places), params

    @property
    def _static(self) -> tuple[Model, OptimizerConfig, int]:
        """What initialization and update depend on: alike for many plans, and compiled once."""
        return self._job.model, self._job.optimizer, self._job.train.steps


@partial(jax.jit, static_argnums=(0, 1, 2))
def _started(
    model: Model, config: OptimizerConfig, num_steps: int, key: Any
) -> tuple[Parameters, optax.OptState]:
    """Return fresh parameters and moments."""
    params = model.init(key, layers=range(model.num_layers), embed=True, head=True)
    return params, stage_optimizer(config, num_steps=num_steps).init(params)


@partial(jax.jit, static_argnums=(0, 1, 2))
def _updated(
    model: Model,
    config: OptimizerConfig,
    num_steps: int,
    params: Parameters,
    moments: optax.OptState,
    gradients: Parameters,
    factor: Any,
) -> tuple[Parameters, optax.OptState]:
    """Return parameters and moments after an update with gradients times a factor."""
    clipped = jax.tree.map(lambda leaf: leaf * factor, gradients)
    optimizer = stage_optimizer(config, num_steps=num_steps)
    changes, moments = optimizer.update(clipped, moments, params)
    moved = jax.tree.map(jnp.add, params, changes)
    return jax.tree.map(jnp.where, _mask(model, moved), moved, params), moments


def _mask(model: Model, params: Parameters) -> Parameters:
    """Return which elements are trained, as masks that broadcast over their leaves."""

    def of_leaf(path: tuple[Any, ...], leaf: Any) -> np.ndarray:
        part, *rest = (key.key for key in path)
        if not isinstance(model, Tuned):
            return np.array(True)
        if part != "blocks":
            return np.array(model.trains(".".join((part, *rest))))
        rows = [model.trains(".".join((part, str(number), *rest))) for number in range(len(leaf))]
        return np.reshape(rows, (-1, *(1,) * (leaf.ndim - 1)))

    return jax.tree.map_with_path(of_leaf, params)


def _added(before: _OfReplica | None, gradients: _OfReplica) -> _OfReplica:
    on_host = jax.tree.map(np.asarray, gradients)
    return on_host if before is None else jax.tree.map(np.add, before, on_host)
