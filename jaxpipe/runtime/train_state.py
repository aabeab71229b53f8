"""What a step of training changes, and what of it a rank holds."""

from dataclasses import dataclass
from typing import TypeAlias

import optax

from jaxpipe.runtime.model import Parameters


@dataclass(frozen=True, slots=True, kw_only=True)
class StageState:
    """The parameters of a stage, and the moments of its optimizer."""

    params: Parameters
    moments: optax.OptState


TrainState: TypeAlias = dict[int, StageState]
"""The state of each stage that a rank holds, by the number of the stage."""
