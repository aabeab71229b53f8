"""Simulated plans whose ranks have several devices."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given

from jaxpipe.plan import Plan, Sharing
from jaxpipe.simulate import plan_step, plan_step_s
from tests.plan.test_groups import grouped, grouped_plans
from tests.plan.test_unlike_replicas import NUM_LAYERS
from tests.simulate.test_plan_step import conditions_of, with_updates


@given(grouped_plans())
def test_without_a_network_a_group_is_a_device_as_fast_as_all_of_them(plan: Plan):
    conditions = conditions_of(64, layers=NUM_LAYERS, network=False)
    if plan.sharing is not Sharing.DATA and not plan.has_data_parts:
        # Updates as well: each device has its part of them.
        conditions = with_updates(conditions, *[2.0] * NUM_LAYERS)
    alone, slow = plan.on_devices(plan.placement), np.ones(64)
    for group in plan.groups:
        slow[group[0]] = 1 / len(group)
    assert plan_step_s(plan, conditions) == pytest.approx(
        plan_step_s(alone, replace(conditions, slow=slow))
    )


def test_the_slowest_device_of_a_group_decides():
    conditions, slow = conditions_of(16, layers=NUM_LAYERS, network=False), np.ones(16)
    slow[4] = 3.0  # the second of the last rank's
    step = plan_step(grouped(), replace(conditions, slow=slow))
    # Microbatches of 2 samples: 5 layers on 3 devices.
    assert step.forward_s == pytest.approx((2 * 3 / 2, 2 * 2, 3.0 * 2 * 5 / 3))


@pytest.mark.parametrize("sharing", Sharing)
def test_exchanges_inside_a_group_take_time(sharing: Sharing):
    conditions = conditions_of(16, layers=NUM_LAYERS, network=True)
    plan = replace(grouped(), sharing=sharing)
    free = replace(conditions, cluster=conditions_of(16, layers=1, network=False).cluster)
    with_s, without_s = plan_step(plan, conditions), plan_step(plan, free)
    for ours, theirs, degree in zip(
        with_s.backward_s, without_s.backward_s, (2, 1, 3), strict=True
    ):
        assert (ours > theirs) == (degree > 1)
    again = plan_step(plan, replace(conditions, recomputes=True))
    longer = [a - b for a, b in zip(again.backward_s, with_s.backward_s, strict=True)]
    splits = sharing in (Sharing.TENSOR, Sharing.SEQUENCE)
    assert [each > 0 for each in longer] == [splits, False, splits]
