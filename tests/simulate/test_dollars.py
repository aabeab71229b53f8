"""Dollars of a step, against sums by hand."""

from dataclasses import replace

import pytest

from jaxpipe import topo
from jaxpipe.errors import PlanError
from jaxpipe.outer import OuterConfig
from jaxpipe.plan import default_plan
from jaxpipe.simulate import check_prices, step_dollars
from jaxpipe.topo import Cluster
from tests.plan_section import decided
from tests.simulate.test_plan_step import conditions_of


def priced(*, hour: float | None = 3.6, egress: float | None = 1e9) -> Cluster:
    """Return two devices in each of two regions, at a tenth of a cent per second."""
    cluster = topo.load("two-region")
    return replace(
        cluster,
        devices=tuple(
            replace(each, dollars_per_hour=hour, egress_dollars_per_gb=egress)
            for each in cluster.devices
        ),
    )


def dollars_of(
    cluster: Cluster,
    *,
    stages: int,
    replicas: int,
    step_s: float,
    outer: OuterConfig | None = None,
) -> float:
    config = decided(cluster="two-region", stages=stages, replicas=replicas)
    plan = default_plan(config, cluster, num_layers=4, batch=2 * replicas, tied=False)
    conditions = replace(conditions_of(4, layers=4, network=False), cluster=cluster, outer=outer)
    return step_dollars(plan, conditions, step_s=step_s)


def test_devices_cost_their_seconds():
    assert dollars_of(priced(), stages=1, replicas=1, step_s=7.0) == pytest.approx(0.007)
    # Two stages in one region: nothing leaves it.
    assert dollars_of(priced(), stages=2, replicas=1, step_s=7.0) == pytest.approx(0.014)


def test_activations_cost_their_bytes_in_both_directions():
    # Stages 1 and 2 of four are in different regions: 4 bytes there and back, for 2 microbatches;
    # of the scalars, 64 bytes there and back.
    found = dollars_of(priced(), stages=4, replicas=1, step_s=0.0)
    assert found == pytest.approx(2 * 2 * 4 + 2 * 64)


def test_gradients_cost_their_bytes():
    # Two replicas, each in a region: 46 parameters of a byte cross in both directions.
    found = dollars_of(priced(), stages=2, replicas=2, step_s=0.0)
    assert found == pytest.approx(2 * 46 + 2 * 64)
    assert dollars_of(priced(egress=0.0), stages=2, replicas=2, step_s=0.0) == 0.0


def test_islands_pay_a_part_of_an_outer_step():
    # An island in each region. Every 10 steps, 46 parameters of four bytes and 16 bytes of scalars
    # per fragment cross in both directions.
    outer = OuterConfig(islands=2, every=10, fragments=2)
    found = dollars_of(priced(), stages=2, replicas=2, step_s=0.0, outer=outer)
    assert found == pytest.approx((2 * 4 * 46 + 2 * 2 * 16) / 10)


def test_prices_are_needed():
    with pytest.raises(PlanError, match="`dollars_per_hour` of device 'ohio-0:0' is missing; add"):
        dollars_of(priced(hour=None), stages=1, replicas=1, step_s=1.0)
    check_prices(priced())
    with pytest.raises(PlanError, match="`egress_dollars_per_gb` of device"):
        check_prices(priced(egress=None))
    one = topo.subcluster(priced(egress=None), (0, 1))
    check_prices(one)  # nothing leaves the only region


@pytest.mark.parametrize("name", ["gcp-five-zones", "gcp-two-zones"])
def test_the_clusters_of_a_study_of_prices_have_them(name: str):
    check_prices(topo.load(name))
