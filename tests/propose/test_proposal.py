"""What is proposed, against what is exact."""

import pytest

from jaxpipe.propose.options import SearchOptions
from jaxpipe.propose.proposal import propose
from tests.propose.asked import asked


@pytest.mark.slow
@pytest.mark.parametrize("cluster", ["two-region", "case2-spot"])
def test_a_proposal_is_at_least_as_fast_as_the_devices_in_order(cluster: str):
    config = asked(
        cluster=cluster,
        model="gpt-xl-24",
        batch=256,
        paced={"tflops": 40.0},
        train={"remat": "full"},
    )
    valued: list[int] = []
    proposal = propose(config, SearchOptions(budget=1.0), observe=valued.append)
    assert proposal.split.step_s <= proposal.identity_s * (1 + 1e-9)
    assert valued == list(range(1, proposal.num_valued + 1))
