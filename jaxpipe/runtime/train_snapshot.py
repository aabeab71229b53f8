"""The state of training in a checkpoint: copied stage by stage, read by any cut."""

from collections.abc import Iterable, Mapping
from dataclasses import asdict
from functools import partial
from typing import Any, Protocol, runtime_checkable

import jax
import numpy as np
import optax

from jaxpipe.runtime.checkpoint import flatten, names, restore
from jaxpipe.runtime.checkpoint.async_saver import Snapshot
from jaxpipe.runtime.job import Job
from jaxpipe.runtime.stage.compile import CompiledStage
from jaxpipe.runtime.stage.loss_scale import LossScale, initial_loss_scale
from jaxpipe.runtime.stage.model import Parameters
from jaxpipe.runtime.stage.train_state import StageState, TrainState
from jaxpipe.runtime.step.worker import Worker

_MOMENTS = ("mu", "nu")
_LOSS_SCALE, _SKIPPED_STEPS = "loss_scale", "skipped_steps"
"""Where the metadata hold what is not a tensor of the state."""


@runtime_checkable
class Saved(Protocol):
    """The state of training after some steps: a `Checkpoint`, or what survivors handed over."""

    @property
    def step(self) -> int:
        """How many steps it has seen."""
        ...

    @property
    def metadata(self) -> Mapping[str, Any]:
        """What is not a tensor."""
        ...

    def read(self, names: Iterable[str]) -> dict[str, np.ndarray]:
        """Return some tensors by their names.

        Raises:
            CheckpointError: one of them is missing or corrupt.
        """
        ...


def snapshot(worker: Worker, state: TrainState, *, step: int) -> Snapshot:
    """Copy to the host what training needs to go on after `step` steps; all ranks call this.

    The ranks of replica 0 hold what is saved, the others nothing. Moments that replicas share out
    are gathered first: a checkpoint does not depend on it. On the CPU, each array is copied once,
    since the next step takes over its memory.
    """
    job, rank = worker.job, worker.transport.rank
    shards: dict[str, dict[str, np.ndarray]] = {}
    for stage, held in state.stages.items():
        moments = _whole_moments(worker, held, stage=stage)
        if job.plan.replica(rank) == 0:
            tensors = _tensors(held.params, moments, first_layer=job.plan.layers(stage).start)
            shards[f"stage-{stage}"] = {name: np.array(each) for name, each in tensors.items()}
    metadata = {**job.description, **to_metadata(state)}
    return Snapshot(step=step, shards=shards, metadata=metadata)


def held_tensors(worker: Worker, state: TrainState) -> dict[str, np.ndarray] | None:
    """Return all tensors of the state that this rank holds, by their names, without a message.

    Return None where it holds parts of them alone, because replicas share the optimizer out, or
    nothing, because an update that took over its arrays was interrupted.
    """
    tensors: dict[str, np.ndarray] = {}
    for stage, held in state.stages.items():
        if worker.compiled[stage].shared_out is not None:
            return None
        first_layer = worker.job.plan.layers(stage).start
        moments = {moment: optax.tree.get(held.moments, moment) for moment in _MOMENTS}
        try:
            tensors |= _tensors(held.params, moments, first_layer=first_layer)
        except RuntimeError:  # jax's, of an array that was donated
            return None
    return tensors


def needed_tensors(job: Job, *, rank: int) -> tuple[str, ...]:
    """Return the names of all tensors that a rank reads to go on; compiles nothing."""
    needed: dict[str, None] = {}
    for stage in job.plan.stages(rank):
        params, _ = jax.eval_shape(job.functions(stage=stage, rank=rank).init)
        for prefix in ("", *(f"{moment}." for moment in _MOMENTS)):
            first_layer = job.plan.layers(stage).start
            needed |= dict.fromkeys(names(params, first_layer=first_layer, prefix=prefix))
    return tuple(needed)


def to_metadata(state: TrainState) -> dict[str, Any]:
    """Return what of the state is not a tensor."""
    loss_scale = None if state.loss_scale is None else asdict(state.loss_scale)
    return {_LOSS_SCALE: loss_scale, _SKIPPED_STEPS: state.skipped_steps}


def restore_state(worker: Worker, checkpoint: Saved | None) -> tuple[TrainState, int]:
    """Return the state from which training starts, and the number of steps it has seen.

    A loss that is scaled, and was not in the checkpoint, starts with the initial scale.

    Raises:
        CheckpointError: a tensor is missing, corrupt, or of another shape.
    """
    plan, scaling = worker.job.plan, worker.job.loss_scale
    loss_scale = None if scaling is None else initial_loss_scale(scaling)
    if checkpoint is None:
        stages = {stage: _fresh(compiled) for stage, compiled in worker.compiled.items()}
        return TrainState(stages=stages, loss_scale=loss_scale), 0
    saved = checkpoint.metadata.get(_LOSS_SCALE)
    if scaling is not None and saved is not None:
        loss_scale = LossScale(**saved)
    skipped_steps = checkpoint.metadata.get(_SKIPPED_STEPS, 0)
    stages = {
        stage: _restored(
            checkpoint,
            compiled,
            first_layer=plan.layers(stage).start,
            num_updates=checkpoint.step - skipped_steps,
        )
        for stage, compiled in worker.compiled.items()
    }
    state = TrainState(stages=stages, loss_scale=loss_scale, skipped_steps=skipped_steps)
    return state, checkpoint.step


def restore_params(checkpoint: Saved, template: Parameters, *, first_layer: int) -> Parameters:
    """Return parameters in the structure of `template`, as jax arrays.

    Raises:
        CheckpointError: a tensor is missing, corrupt, or of another shape.
    """
    return jax.device_put(_read(checkpoint, template, first_layer=first_layer, prefix=""))


def _fresh(compiled: CompiledStage) -> StageState:
    params, moments = compiled.init()
    return StageState(params=params, moments=moments)


def _restored(
    checkpoint: Saved, compiled: CompiledStage, *, first_layer: int, num_updates: int
) -> StageState:
    fresh = _fresh(compiled)
    read = partial(_read, checkpoint, fresh.params, first_layer=first_layer)
    moments = optax.tree.set(
        fresh.moments,
        count=np.int32(num_updates),
        **{moment: _held(compiled, read(prefix=f"{moment}.")) for moment in _MOMENTS},
    )
    place = compiled.layout.place  # each count gets an array of its own: they are donated
    return StageState(params=place(read(prefix="")), moments=place(moments))


def _read(checkpoint: Saved, template: Parameters, *, first_layer: int, prefix: str) -> Parameters:
    found = checkpoint.read(names(template, first_layer=first_layer, prefix=prefix))
    return restore(template, found, first_layer=first_layer, prefix=prefix)


def _held(compiled: CompiledStage, moment: Parameters) -> Parameters:
    if compiled.shared_out is None:
        return moment
    held = compiled.shared_out.held(moment)
    return jax.tree.map(np.copy, held)  # a view would keep the whole alive


def _whole_moments(worker: Worker, held: StageState, *, stage: int) -> dict[str, Parameters]:
    moments = {moment: optax.tree.get(held.moments, moment) for moment in _MOMENTS}
    functions, sharing = worker.compiled[stage].shared_out, worker.interpreter.sharing
    if functions is None:
        return moments
    size = functions.num_shared_out()
    for moment, tree in moments.items():
        flat = sharing.gather(functions.own(tree), stage=stage, size=size)
        moments[moment] = functions.join(flat, tree)
    return moments


def _tensors(
    params: Parameters, moments: dict[str, Parameters], *, first_layer: int
) -> dict[str, np.ndarray]:
    tensors = flatten(params, first_layer=first_layer)
    for moment, tree in moments.items():
        tensors |= flatten(tree, first_layer=first_layer, prefix=f"{moment}.")
    return tensors
