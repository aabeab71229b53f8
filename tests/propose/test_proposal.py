"""What is proposed, against what is exact."""

import pytest

from jaxpipe.propose.proposal import propose
from jaxpipe.propose.request import PlanRequest


@pytest.mark.slow
@pytest.mark.parametrize("cluster", ["two-region", "case2-spot"])
def test_a_proposal_is_at_least_as_fast_as_the_devices_in_order(cluster: str):
    request = PlanRequest(cluster=cluster, model="gpt-xl-24", batch=256, budget=1.0, tflops=40.0)
    valued: list[int] = []
    proposal = propose(request, observe=valued.append)
    assert proposal.split.step_s <= proposal.identity_s * (1 + 1e-9)
    assert valued == list(range(1, proposal.num_valued + 1))
