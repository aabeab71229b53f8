"""Every transport that runs in one process passes the conformance suite."""

from collections.abc import Callable

import pytest

from jaxpipe.comm import Transport
from tests.comm.checks import CHECKS
from tests.helpers import IN_PROCESS_TRANSPORTS, RunRanks

pytestmark = pytest.mark.slow


# Wrappers add nothing that depends on the number of ranks: each has one or two of these numbers.
NUMBERS = {
    "local": (1, 2, 3, 4),
    "counted": (3,),
    "coded": (2, 4),
    "shaped": (1, 3),
    "subset": (2, 3),
}


def test_every_transport_is_tried() -> None:
    assert NUMBERS.keys() == IN_PROCESS_TRANSPORTS.keys()


@pytest.mark.parametrize(
    ("num_ranks", "run"),
    [
        pytest.param(number, IN_PROCESS_TRANSPORTS[name], id=f"{number}-{name}")
        for name, numbers in NUMBERS.items()
        for number in numbers
    ],
)
@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_conforms(run: RunRanks, check: Callable[[Transport], None], num_ranks: int):
    run(num_ranks, check)
