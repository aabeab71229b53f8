"""The training state of one rank."""

from dataclasses import dataclass

import optax

from jaxpipe.runtime.stage.loss_scale import LossScale
from jaxpipe.runtime.stage.model import Parameters


@dataclass(frozen=True, slots=True, kw_only=True)
class StageState:
    """The parameters of a stage, and the moments of its optimizer."""

    params: Parameters
    moments: optax.OptState


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainState:
    """The state of each stage of a rank, by its number, and scalars that are equal on all ranks.

    `loss_scale` is None if the loss is not scaled. `skipped_steps` counts the steps so far whose
    gradients were not finite, and which changed nothing.
    """

    stages: dict[int, StageState]
    loss_scale: LossScale | None = None
    skipped_steps: int = 0
