"""What a step of training changes, and what of it a rank holds."""

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
    """The state of each stage that a rank holds, by its number, and what all ranks know alike.

    `loss_scale` is None where the loss is not scaled. `skipped_steps` are those of all steps so far
    that overflowed and changed nothing.
    """

    stages: dict[int, StageState]
    loss_scale: LossScale | None = None
    skipped_steps: int = 0
