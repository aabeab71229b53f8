"""The trained parameters of a rank by name, stage by stage: read from a state, and put into one."""

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from jaxpipe.runtime.checkpoint import flatten, restore
from jaxpipe.runtime.stage.train_state import StageState, TrainState
from jaxpipe.runtime.stage.trained import overlay, trained
from jaxpipe.runtime.step.worker import Worker


def trained_tensors(worker: Worker, state: TrainState, stage: int) -> dict[str, np.ndarray]:
    """Return the leaves of a stage with trained parameters, in some of which others are frozen.

    They may be views of the arrays of the state, which the next step donates.
    """
    part = trained(worker.job.model, state.stages[stage].params)
    return flatten(part, first_layer=first_layer(worker, stage))


def with_trained(
    worker: Worker, state: TrainState, tensors: Mapping[int, Mapping[str, np.ndarray]]
) -> TrainState:
    """Return the state with these tensors, by stage, as the trained parameters."""
    stages: dict[int, StageState] = {}
    for stage, before in state.stages.items():
        part = trained(worker.job.model, before.params)
        restored = restore(part, tensors[stage], first_layer=first_layer(worker, stage))
        # Every leaf becomes an array of its own: the next step donates them.
        placed = worker.calls[stage].spec.layout.place(restored)
        params = overlay(before.params, placed)
        stages[stage] = StageState(params=params, moments=before.moments)
    return replace(state, stages=stages)


def first_layer(worker: Worker, stage: int) -> int:
    """Return the number of the first layer of a stage of a rank."""
    plan = worker.job.plan
    return plan.layers(stage, replica=plan.replica(worker.transport.rank)).start
