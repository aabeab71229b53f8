"""The transport over a fake NCCL passes the conformance suite; arrays arrive on devices."""

from collections.abc import Callable

import pytest

from jaxpipe.comm import Transport
from tests.comm.conformance import MESSAGE_CHECKS, jax_takes_what_arrives_without_a_copy
from tests.comm.conformance_all_reduce import (
    all_reduce_sums_over_any_tree,
    sums_go_on_beside_each_other,
)
from tests.comm.nccl.fake import run_with_fake_nccl

CHECKS = (
    *(check for check in MESSAGE_CHECKS if check is not jax_takes_what_arrives_without_a_copy),
    all_reduce_sums_over_any_tree,
    sums_go_on_beside_each_other,
)


@pytest.mark.parametrize("num_ranks", [1, 2, 3])
@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_conforms(check: Callable[[Transport], None], num_ranks: int):
    run_with_fake_nccl(num_ranks, check)
