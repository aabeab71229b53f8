"""Paced stage: its functions sleep as long as the real ones compute, and return only messages."""

from collections.abc import Callable, Mapping
from typing import Any

import jax
import numpy as np

from jaxpipe.paced.virtual_clock import VirtualClock
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
    clock: VirtualClock,
    message: np.ndarray,
    buckets: Mapping[Bucket, np.ndarray],
) -> CompiledStage:
    """Return a stage of a job whose computes take as long as the job says.

    Each forward and backward returns the same `message`, each step the same `buckets`; they must
    not be written to. There are no parameters and no gradients.
    """

    def sleeping(op: Op, result: Any) -> Callable[..., Any]:
        seconds = job.seconds(Instruction(op=op, stage=stage), rank=rank)

        def sleep(*_: Any) -> Any:
            clock.sleep(seconds)
            return result

        return sleep

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
        forward=sleeping(Op.FORWARD, (output, None)),
        evaluate=sleeping(Op.FORWARD, output),
        backwards={
            Op.BACKWARD: sleeping(Op.BACKWARD, (of_input, {})),
            Op.BACKWARD_INPUT: sleeping(Op.BACKWARD_INPUT, (of_input, None)),
            Op.BACKWARD_WEIGHT: sleeping(Op.BACKWARD_WEIGHT, {}),
        },
        split=_CarriesNothing(),
        pack=lambda _: dict(buckets),
        square_norm=lambda _: 0.0,
        update=sleeping(Op.UPDATE, ({}, ())),
    )


class _CarriesNothing:
    def carry(self, residuals: Any, cotangent: Any, crossing: Any) -> None:
        """Return None: the halves of a sleep share no residuals."""
