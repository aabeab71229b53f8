"""The training state as named tensors: copied for a checkpoint, read for any partition of layers.

Names and shapes depend neither on the partition, nor on the mesh, nor on a sharded optimizer.
"""

from collections.abc import Iterable, Mapping
from dataclasses import asdict, replace
from functools import partial
from typing import Any, Protocol, runtime_checkable

import jax
import msgspec
import numpy as np

from jaxpipe.errors import CheckpointError
from jaxpipe.runtime.checkpoint import Read, flatten, names, restore
from jaxpipe.runtime.checkpoint.save_parts import Snapshot
from jaxpipe.runtime.job import Job
from jaxpipe.runtime.stage.calls import StageCalls
from jaxpipe.runtime.stage.loss_scale import LossScale, initial_loss_scale
from jaxpipe.runtime.stage.master_weights import from_params
from jaxpipe.runtime.stage.model import Model, Parameters, Tuned
from jaxpipe.runtime.stage.moments import moments_of, with_moments
from jaxpipe.runtime.stage.train_state import StageState, TrainState
from jaxpipe.runtime.stage.trained import overlay, select, trained
from jaxpipe.runtime.stage.zero1 import ShardedParameters
from jaxpipe.runtime.step.worker import Worker

LOSS_SCALE, SKIPPED_STEPS = "loss_scale", "skipped_steps"
"""The keys of the metadata for the parts of the state that are not tensors."""


@runtime_checkable
class Saved(Protocol):
    """A training state: a `Checkpoint`, or the `TransferredState` of survivors."""

    @property
    def step(self) -> int:
        """The number of steps trained."""
        ...

    @property
    def metadata(self) -> Mapping[str, Any]:
        """The parts of the state that are not tensors, and the description of the run."""
        ...

    @property
    def tensors(self) -> Mapping[str, Any]:
        """The names of its tensors, with what is known of each."""
        ...

    def read(self, names: Iterable[str]) -> dict[str, np.ndarray]:
        """Return some tensors by their names.

        Raises:
            CheckpointError: one of them is missing or corrupt.
        """
        ...


def snapshot(worker: Worker, state: TrainState, *, step: int) -> Snapshot:
    """Copy the state after `step` steps to the host, to be saved; all ranks call this.

    Replica 0 saves everything, the other replicas nothing. Moments of a sharded optimizer are
    gathered first. On the CPU, each array is copied once, since the next step donates its memory.
    """
    job, rank = worker.job, worker.transport.rank
    shards: dict[str, dict[str, np.ndarray]] = {}  # by file, one per stage
    for stage, of_stage in state.stages.items():
        # A collective call: also the replicas that save nothing contribute their shards.
        moments = whole_moments(worker, of_stage, stage=stage)
        if job.plan.replica(rank) == 0:
            first_layer = job.plan.layers(stage, replica=0).start
            tensors = _tensors(of_stage.params, moments, first_layer=first_layer)
            shards[f"stage-{stage}"] = {name: np.array(tensor) for name, tensor in tensors.items()}
    metadata = {**worker.whole.description_at(step), **to_metadata(state)}
    return Snapshot(step=step, shards=shards, metadata=metadata)


def own_tensors(worker: Worker, state: TrainState) -> dict[str, np.ndarray] | None:
    """Return all tensors of this rank's stages, by their names, without any communication.

    Return None if they are incomplete: because the optimizer is sharded, or because an update was
    interrupted to which the arrays had been donated.
    """
    plan, rank = worker.job.plan, worker.transport.rank
    tensors: dict[str, np.ndarray] = {}
    for stage, of_stage in state.stages.items():
        if worker.calls[stage].spec.sharded is not None:
            return None
        first_layer = plan.layers(stage, replica=plan.replica(rank)).start
        moments = moments_of(of_stage.moments)
        # Reading a donated array raises: that is how an interrupted update shows.
        try:
            tensors |= _tensors(of_stage.params, moments, first_layer=first_layer)
        except RuntimeError:  # jax raises it for a donated array
            return None
    return tensors


def needed_tensors(job: Job, *, rank: int) -> tuple[str, ...]:
    """Return the names of all tensors that a rank reads to resume, without compiling anything."""
    needed: dict[str, None] = {}
    for stage in job.plan.stages(rank):
        functions = job.functions(stage=stage, rank=rank)
        # Of a sharded optimizer, too, each moment has the names of all parameters.
        params, moments = jax.eval_shape(replace(functions, shards=()).init)
        first_layer = job.plan.layers(stage, replica=job.plan.replica(rank)).start
        needed |= dict.fromkeys(names(params, first_layer=first_layer))
        for moment, tree in moments_of(moments).items():
            prefix = f"{moment}."
            needed |= dict.fromkeys(names(tree, first_layer=first_layer, prefix=prefix))
    return tuple(needed)


def to_metadata(state: TrainState) -> dict[str, Any]:
    """Return the parts of the state that are not tensors."""
    loss_scale = None if state.loss_scale is None else asdict(state.loss_scale)
    return {LOSS_SCALE: loss_scale, SKIPPED_STEPS: state.skipped_steps}


def restore_state(worker: Worker, checkpoint: Saved | None) -> tuple[TrainState, int]:
    """Return the state from which training starts, and the number of steps trained.

    A loss scale that is not in the checkpoint has its initial value.

    Raises:
        CheckpointError: a tensor is missing, corrupt, or of another shape.
    """
    plan, scaling = worker.job.plan, worker.job.loss_scale
    replica = plan.replica(worker.transport.rank)
    loss_scale = None if scaling is None else initial_loss_scale(scaling)
    if checkpoint is None:
        stages = {stage: _fresh(calls) for stage, calls in worker.calls.items()}
        return TrainState(stages=stages, loss_scale=loss_scale), 0
    saved, skipped_steps = _untensored(checkpoint)
    if scaling is not None and saved is not None:
        loss_scale = saved
    stages = {
        stage: _restored(
            checkpoint,
            calls,
            model=worker.job.model,
            first_layer=plan.layers(stage, replica=replica).start,
            num_updates=checkpoint.step - skipped_steps,  # skipped steps update nothing
        )
        for stage, calls in worker.calls.items()
    }
    state = TrainState(stages=stages, loss_scale=loss_scale, skipped_steps=skipped_steps)
    return state, checkpoint.step


def _untensored(checkpoint: Saved) -> tuple[LossScale | None, int]:
    """Return the loss scale and the number of skipped steps, if the metadata are well-formed."""
    try:
        loss_scale = msgspec.convert(checkpoint.metadata.get(LOSS_SCALE), LossScale | None)
        skipped_steps = msgspec.convert(checkpoint.metadata.get(SKIPPED_STEPS, 0), int)
    except msgspec.ValidationError as error:
        raise CheckpointError(
            f"`checkpoint` must have a loss scale and skipped steps in its metadata: {error}; "
            "resume from an older step"
        ) from error
    if not 0 <= skipped_steps <= checkpoint.step:
        raise CheckpointError(
            f"`checkpoint` must have at most as many skipped steps as its {checkpoint.step}, not "
            f"{skipped_steps}; resume from an older step"
        )
    return loss_scale, skipped_steps


def restore_params(read: Read, template: Parameters, *, first_layer: int) -> Parameters:
    """Return parameters in the structure of `template`, as jax arrays; `read` is a checkpoint's.

    Raises:
        CheckpointError: a tensor is missing, corrupt, or of another shape.
    """
    return jax.device_put(_read(read, template, first_layer=first_layer, prefix=""))


def saved_part(model: Model, params: Parameters, saved: Saved) -> Parameters:
    """Return the parameters that a training state has: an import may have no adapters."""
    if saved.step or not isinstance(model, Tuned) or any(map(model.adds, saved.tensors)):
        return params
    return select(params, lambda name: not model.adds(name))


def _fresh(calls: StageCalls) -> StageState:
    params, moments = calls.init()
    return StageState(params=params, moments=moments)


def _restored(
    checkpoint: Saved, calls: StageCalls, *, model: Model, first_layer: int, num_updates: int
) -> StageState:
    fresh, sharded = _fresh(calls), calls.spec.sharded
    read = partial(_read, checkpoint.read, first_layer=first_layer)
    put = calls.spec.layout.place  # every leaf becomes an array of its own: all are donated
    restored = read(saved_part(model, fresh.params, checkpoint), prefix="")
    params = put(overlay(fresh.params, restored))
    if not num_updates:  # an import has no moments: they are fresh
        # Masters are those of the import, too.
        masters = from_params(fresh.moments, lambda: _owned(calls, trained(model, params)))
        return StageState(params=params, moments=put(masters))
    restored = {
        # The moments of a sharded optimizer are pieces: whole ones are like the parameters.
        name: _owned(calls, read(_shapes_of(tree, sharded), prefix=f"{name}."))
        for name, tree in moments_of(fresh.moments).items()
    }
    moments = with_moments(fresh.moments, restored, num_updates=num_updates)
    return StageState(params=params, moments=put(moments))


def _read(read: Read, template: Parameters, *, first_layer: int, prefix: str) -> Parameters:
    tensors = read(names(template, first_layer=first_layer, prefix=prefix))
    return restore(template, tensors, first_layer=first_layer, prefix=prefix)


def _shapes_of(moment: Parameters, sharded: ShardedParameters | None) -> Parameters:
    """Return the shapes of a whole moment; one of a sharded optimizer is in pieces."""
    if sharded is None:
        return moment
    dtype = jax.tree.leaves(moment)[0].dtype
    return jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, dtype), sharded.shapes)


def _owned(calls: StageCalls, moment: Parameters) -> Parameters:
    sharded = calls.spec.sharded
    if sharded is None:
        return moment
    return jax.tree.map(np.copy, sharded.owned(moment))  # a view would keep the whole array alive


def whole_moments(worker: Worker, state: StageState, *, stage: int) -> dict[str, Parameters]:
    """Return the moments of a stage, gathered if replicas shard its optimizer; all ranks call this.

    They are not copied: the next step donates them.
    """
    moments = moments_of(state.moments)
    sharded = worker.calls[stage].spec.sharded
    if sharded is None:
        return moments
    gathered = worker.interpreter.parameter_gather.all_gather(
        [sharded.vectors(owned) for owned in moments.values()], stage=stage, sizes=sharded.sizes
    )
    return {
        moment: sharded.join(vectors, owned)
        for (moment, owned), vectors in zip(moments.items(), gathered, strict=True)
    }


def _tensors(
    params: Parameters, moments: dict[str, Parameters], *, first_layer: int
) -> dict[str, np.ndarray]:
    tensors = flatten(params, first_layer=first_layer)
    for moment, tree in moments.items():
        tensors |= flatten(tree, first_layer=first_layer, prefix=f"{moment}.")
    return tensors
