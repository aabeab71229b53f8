"""Every transport that runs in one process passes the conformance suite."""

from collections.abc import Callable

import pytest

from jaxpipe.comm import Transport
from tests.comm.checks import CHECKS
from tests.helpers import IN_PROCESS_TRANSPORTS, RunRanks

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("run", IN_PROCESS_TRANSPORTS.values(), ids=IN_PROCESS_TRANSPORTS.keys())
@pytest.mark.parametrize("num_ranks", [1, 2, 3, 4])
@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_conforms(run: RunRanks, check: Callable[[Transport], None], num_ranks: int):
    run(num_ranks, check)
