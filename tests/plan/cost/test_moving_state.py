"""Seconds of moving state between plans, against counts by hand."""

from math import inf

import pytest

from jaxpipe.plan import Pipeline, Plan
from jaxpipe.plan.cost import flop_profile
from jaxpipe.plan.cost.moving_state import moving_s
from jaxpipe.plan.partition import Cut
from jaxpipe.schedule import ScheduleKind
from jaxpipe.topo import load

CLUSTER = load("homogeneous:hosts=4,delay_ms=100,bandwidth_gbps=8")
"""A link moves 1e9 bytes in a second, a tenth of a second after they left."""
PROFILE = flop_profile(
    num_layers=6,
    layer_flop=1.0,
    layer_parameters=10**8,
    layer_kept_bytes=1,
    activation_bytes=1,
    flops_per_s=1.0,
)


def plan(*rows: tuple[tuple[int, ...], Cut]) -> Plan:
    return Plan(
        pipelines=tuple(Pipeline(devices=each, cut=cut, num_microbatches=2) for each, cut in rows),
        schedule=ScheduleKind.ONE_F_ONE_B,
        tied=False,
    )


def seconds(old: Plan, new: Plan, *, lost: tuple[int, ...] = ()) -> float:
    return moving_s(old, new, CLUSTER, PROFILE, bytes_per_parameter=10, lost=lost)


OLD = plan(((0, 1), (3, 3)), ((2, 3), (3, 3)))


def test_the_same_plan_moves_nothing():
    assert seconds(OLD, OLD) == 0.0


def test_a_layer_that_changes_its_stage_moves_once():
    assert seconds(plan(((0, 1), (3, 3))), plan(((0, 1), (4, 2)))) == pytest.approx(1.1)


def test_two_holders_share_the_sending():
    # Device 0 takes layers 3 to 5 one after the other: it is busy, whichever device sends.
    assert seconds(OLD, plan(((0,), (6,)))) == pytest.approx(3.3)
    # Layers 3 to 5 for devices 0 and 2: six messages, three from 1 and three from 3.
    assert seconds(OLD, plan(((0,), (6,)), ((2,), (6,)))) == pytest.approx(3.3)


def test_a_lost_device_sends_nothing():
    # Device 3 is lost: 1 alone sends its layers to both.
    new = plan(((0,), (6,)), ((2,), (6,)))
    assert seconds(OLD, new, lost=(3,)) == pytest.approx(6.6)


def test_a_layer_that_nobody_holds_needs_a_checkpoint():
    assert seconds(plan(((0, 1), (3, 3))), plan(((0,), (6,))), lost=(1,)) == inf


def test_a_device_that_returns_fetches_all_of_its_layers():
    assert seconds(OLD, OLD, lost=(3,)) == pytest.approx(3.3)
