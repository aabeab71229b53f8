"""A stage whose functions are waits: as long as the real ones, and no arrays but its messages."""

from collections.abc import Callable, Mapping
from typing import Any

import jax
import numpy as np

from jaxpipe.paced.virtual_clock import Pace
from jaxpipe.runtime.stage.compile import CompiledStage
from jaxpipe.runtime.stage.mesh import ONE_DEVICE
from jaxpipe.schedule import Bucket, Instruction, Op
from jaxpipe.simulate.engine.step_model import StepModel

_NO_LOSS = np.zeros((), np.float32)


def paced_stage(
    job: StepModel,
    *,
    rank: int,
    stage: int,
    pace: Pace,
    message: np.ndarray,
    buckets: Mapping[Bucket, np.ndarray],
) -> CompiledStage:
    """Return a stage of a job whose computes last as long as the job says.

    Each forward and backward makes the same `message`, each step the same `buckets`; nobody may
    write to them. Parameters and gradients do not exist.
    """

    def lasting(op: Op, result: Any) -> Callable[..., Any]:
        seconds = job.seconds(Instruction(op=op, stage=stage), rank=rank)

        def last(*_: Any) -> Any:
            pace.last(seconds)
            return result

        return last

    is_first, is_last = stage == 0, stage == job.num_stages - 1
    output = _NO_LOSS if is_last else message
    of_input = None if is_first else message
    return CompiledStage(
        is_first=is_first,
        is_last=is_last,
        layout=ONE_DEVICE,
        activation=jax.ShapeDtypeStruct(message.shape, message.dtype),
        loss_cotangent=message,
        init=lambda: ({}, ()),
        cast=lambda params: params,
        zeros=dict,
        forward=lasting(Op.FORWARD, (output, None)),
        evaluate=lasting(Op.FORWARD, output),
        backwards={
            Op.BACKWARD: lasting(Op.BACKWARD, (of_input, {})),
            Op.BACKWARD_INPUT: lasting(Op.BACKWARD_INPUT, (of_input, None)),
            Op.BACKWARD_WEIGHT: lasting(Op.BACKWARD_WEIGHT, {}),
        },
        split=_CarriesNothing(),
        pack=lambda _: dict(buckets),
        square_norm=lambda _: 0.0,
        update=lasting(Op.UPDATE, ({}, ())),
    )


class _CarriesNothing:
    def carry(self, residuals: Any, cotangent: Any, crossing: Any) -> None:
        """Return what there is between the halves of a wait."""
