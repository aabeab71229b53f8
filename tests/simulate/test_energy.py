"""Watt-hours of a step, against products by hand."""

from dataclasses import replace

import pytest

from jaxpipe import topo
from jaxpipe.errors import PlanError
from jaxpipe.plan import default_plan
from jaxpipe.simulate import check_power, step_watt_hours
from jaxpipe.topo import Cluster
from jaxpipe.topo.gpu import gpu, gpu_names
from tests.plan_section import decided


def watt_hours(cluster: Cluster, *, replicas: int, step_s: float) -> float:
    config = decided(cluster=cluster.name, stages=2, replicas=replicas)
    plan = default_plan(config, cluster, num_layers=4, batch=replicas, tied=False)
    return step_watt_hours(plan, cluster, step_s=step_s)


def test_devices_in_use_draw_the_power_of_their_type():
    cluster = topo.load("homogeneous:hosts=5")
    assert watt_hours(cluster, replicas=2, step_s=36.0) == pytest.approx(4 * 300 / 100)


def test_a_stated_power_takes_the_place_of_that_of_the_type():
    cluster = topo.load("homogeneous:hosts=2")
    first, second = cluster.devices
    changed = replace(cluster, devices=(replace(first, watts=100.0), second))
    assert watt_hours(changed, replicas=1, step_s=36.0) == pytest.approx(4.0)


def test_unknown_powers_are_refused():
    with pytest.raises(PlanError, match="`watts` of device 'ohio-0:0' is missing; add it to its"):
        check_power(topo.load("two-region"))
    check_power(topo.load("homogeneous:hosts=2"))


def test_all_types_of_the_table_have_a_power():
    assert all(gpu(name).watts for name in gpu_names())
