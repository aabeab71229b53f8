"""The optimizer of a configuration decides how many moments devices have to hold."""

import pytest

from tests.propose.asked import asked, known


@pytest.mark.parametrize(
    ("optimizer", "moments"), [("adamw", 2), ("muon", 2), ("lion", 1), ("adafactor", 0)]
)
def test_moments_are_those_of_the_optimizer(optimizer: str, moments: int) -> None:
    config = asked(
        cluster="two-region", batch=8, optimizer={"name": optimizer}, paced={"tflops": 1.0}
    )
    each = known(config)[0].bytes_each
    assert (each.parameter, each.gradient, each.optimizer) == (4, 4, 4 * moments)
