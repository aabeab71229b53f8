"""The state of training in a checkpoint: written stage by stage, read by any cut."""

from functools import partial

import jax
import numpy as np
import optax

from jaxpipe.comm import BARRIER_TAG, GATHER_TAG, barrier, gather_bytes
from jaxpipe.runtime.checkpoint import (
    Checkpoint,
    TensorEntry,
    begin,
    commit,
    decode_entries,
    encode_entries,
    flatten,
    names,
    partial_folder,
    prune,
    restore,
    write_shard,
)
from jaxpipe.runtime.compiled import CompiledStage
from jaxpipe.runtime.model import Parameters
from jaxpipe.runtime.train_state import StageState, TrainState
from jaxpipe.runtime.worker import Worker

_MOMENTS = ("mu", "nu")


def save_state(worker: Worker, state: TrainState, *, step: int) -> None:
    """Save what training needs to go on after `step` updates; all ranks call this.

    The ranks of replica 0 write, rank 0 commits once all have written, and removes old checkpoints.

    Raises:
        CheckpointError: a file cannot be written, or does not read back as it was written.
    """
    job, transport, timeout_s = worker.job, worker.transport, worker.job.run.timeout_s
    if transport.rank == 0:
        begin(job.folder, step=step)
    barrier(transport, tag=BARRIER_TAG, timeout_s=timeout_s)
    entries: tuple[TensorEntry, ...] = ()
    if job.plan.replica(transport.rank) == 0:
        folder = partial_folder(job.folder, step=step)
        for stage, held in state.items():
            first_layer = job.plan.layers(stage).start
            tensors = _tensors(held, first_layer=first_layer)
            entries += tuple(write_shard(folder, f"stage-{stage}", tensors))
    payloads = gather_bytes(
        transport, encode_entries(entries), root=0, tag=GATHER_TAG, timeout_s=timeout_s
    )
    if payloads is not None:
        everything = [entry for payload in payloads for entry in decode_entries(payload)]
        commit(partial_folder(job.folder, step=step), everything, job.description)
        prune(job.folder, keep=job.checkpoint.keep)


def restore_state(worker: Worker, checkpoint: Checkpoint | None) -> tuple[TrainState, int]:
    """Return the state from which training starts, and the number of updates it has seen.

    Raises:
        CheckpointError: a tensor is missing, corrupt, or of another shape.
    """
    if checkpoint is None:
        return {stage: _fresh(compiled) for stage, compiled in worker.compiled.items()}, 0
    plan = worker.job.plan
    state = {
        stage: _restored(checkpoint, _fresh(compiled), first_layer=plan.layers(stage).start)
        for stage, compiled in worker.compiled.items()
    }
    return state, checkpoint.step


def restore_params(checkpoint: Checkpoint, template: Parameters, *, first_layer: int) -> Parameters:
    """Return parameters in the structure of `template`, as jax arrays.

    Raises:
        CheckpointError: a tensor is missing, corrupt, or of another shape.
    """
    return _read(checkpoint, template, first_layer=first_layer, prefix="")


def _fresh(compiled: CompiledStage) -> StageState:
    params, moments = compiled.init()
    return StageState(params=params, moments=moments)


def _restored(checkpoint: Checkpoint, fresh: StageState, *, first_layer: int) -> StageState:
    read = partial(_read, checkpoint, fresh.params, first_layer=first_layer)
    moments = optax.tree.set(
        fresh.moments,
        count=np.int32(checkpoint.step),
        **{moment: read(prefix=f"{moment}.") for moment in _MOMENTS},
    )
    moments = jax.device_put(moments)  # each count gets an array of its own: they are donated
    return StageState(params=read(prefix=""), moments=moments)


def _read(
    checkpoint: Checkpoint, template: Parameters, *, first_layer: int, prefix: str
) -> Parameters:
    found = checkpoint.read(names(template, first_layer=first_layer, prefix=prefix))
    return jax.device_put(restore(template, found, first_layer=first_layer, prefix=prefix))


def _tensors(state: StageState, *, first_layer: int) -> dict[str, np.ndarray]:
    tensors = flatten(state.params, first_layer=first_layer)
    for moment in _MOMENTS:
        tree = optax.tree.get(state.moments, moment)
        tensors |= flatten(tree, first_layer=first_layer, prefix=f"{moment}.")
    return tensors
