"""Plans that count on NICs which the cluster file does not state."""

from dataclasses import replace
from math import inf

import numpy as np
import pytest

from jaxpipe.collective import AllReduceKind
from jaxpipe.plan import default_plan
from jaxpipe.propose.side_by_side import SideBySide, side_by_side
from jaxpipe.simulate import Conditions
from tests.plan.models import profile_of
from tests.plan_section import decided
from tests.simulate.uniform import cluster


def found(
    replicas: int,
    *,
    all_reduce: AllReduceKind = AllReduceKind.SHARDED,
    nic_bytes_per_s: float = inf,
    devices_per_host: int = 1,
) -> SideBySide | None:
    where = cluster(
        replicas,
        bytes_per_s=2e9,
        devices_per_host=devices_per_host,
        nic_bytes_per_s=nic_bytes_per_s,
    )
    profile = profile_of(1)
    plan = default_plan(
        decided(stages=1, replicas=replicas), where, num_layers=1, batch=replicas, tied=False
    )
    conditions = Conditions(
        cluster=where, profile=profile, slow=np.ones(replicas), gradient_bytes=4.0
    )
    return side_by_side(replace(plan, all_reduce=all_reduce), conditions)


def test_the_host_that_sends_most_at_once_is_named():
    assert found(5) == SideBySide(host="h0", num_peers=4, bytes_per_s=8e9)
    # Two devices of a host send to four others each.
    assert found(6, devices_per_host=2) == SideBySide(host="h0", num_peers=8, bytes_per_s=16e9)


@pytest.mark.parametrize(
    "harmless",
    [
        {"replicas": 5, "nic_bytes_per_s": 1e12},
        {"replicas": 2},
        {"replicas": 4, "devices_per_host": 4},
        {"replicas": 5, "all_reduce": AllReduceKind.RING},
    ],
)
def test_nothing_is_said_where_no_nic_is_missed(harmless: dict):
    assert found(**harmless) is None
