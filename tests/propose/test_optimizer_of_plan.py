"""The optimizer of a request decides how many moments devices have to hold."""

import pytest

from jaxpipe.propose.proposal import preset_model, task_and_conditions
from jaxpipe.propose.request import PlanRequest
from jaxpipe.runtime.config import OptimizerName


@pytest.mark.parametrize(
    ("optimizer", "moments"),
    [(None, 2), (OptimizerName.MUON, 2), (OptimizerName.LION, 1), (OptimizerName.ADAFACTOR, 0)],
)
def test_moments_are_those_of_the_optimizer(optimizer: OptimizerName | None, moments: int) -> None:
    request = PlanRequest(
        cluster="two-region", model="tiny", batch=8, optimizer=optimizer, tflops=1.0
    )
    task, _ = task_and_conditions(request, preset_model(request))
    each = task.bytes_each
    assert (each.parameter, each.gradient, each.optimizer) == (4, 4, 4 * moments)
