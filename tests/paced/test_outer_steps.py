"""Emulated outer loops: as long as simulated, with the bytes of the closed form."""

from dataclasses import replace

import numpy as np
import pytest

from jaxpipe.collective import AllReduceKind
from jaxpipe.comm import run_ranks
from jaxpipe.outer import OuterConfig
from jaxpipe.paced import Outcome, PlannedOuter, Scale, execute, planned_outer
from jaxpipe.paced.outer_steps import OuterBucket
from jaxpipe.plan import Plan, default_plan
from jaxpipe.plan.cost import flop_profile
from jaxpipe.schedule import ScheduleKind
from jaxpipe.simulate import Conditions, plan_step
from jaxpipe.simulate.outer_step import outer_times
from jaxpipe.trace import messages
from tests.paced.test_execute import CLUSTER, TIMEOUT_S
from tests.plan_section import decided

EVERY = 3
LAYER, EMBED = 5_000_000, 1_000_000
"""Values: an outer step of four layers takes several inner steps between the regions."""


def conditions() -> Conditions:
    profile = flop_profile(
        num_layers=4,
        layer_flop=2e6,
        layer_parameters=LAYER,
        layer_kept_bytes=0,
        activation_bytes=4000,
        embed_parameters=EMBED,
        flops_per_s=1e9,
    )
    return Conditions(
        cluster=CLUSTER, profile=profile, slow=np.ones(len(CLUSTER)), gradient_bytes=4
    )


def plan_of(*, stages: int, replicas: int, tied: bool) -> Plan:
    config = decided(
        cluster="two-region",
        stages=stages,
        replicas=replicas,
        schedule=ScheduleKind.EAGER_ONE_F_ONE_B,
    )
    plan = default_plan(config, CLUSTER, num_layers=4, batch=16, tied=tied)
    return replace(plan, all_reduce=AllReduceKind.HIERARCHICAL)


def run(plan: Plan, planned: PlannedOuter) -> Outcome:
    job = plan_step(plan, conditions())
    # Slower than real time: a late machine would add to the seconds.
    first, *_ = run_ranks(
        plan.num_ranks,
        lambda transport: execute(
            job, transport, scale=Scale(time=2.0), outer=planned, timeout_s=TIMEOUT_S
        ),
    )
    assert first is not None
    return first


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize(
    ("layout", "islands"),
    [({"stages": 2, "replicas": 2}, 2), ({"stages": 1, "replicas": 4}, 2)],
)
def test_a_blocking_outer_step_takes_at_least_as_long_as_simulated(
    layout: dict[str, int], islands: int, tied: bool
):
    plan, outer = plan_of(tied=tied, **layout), OuterConfig(islands=islands, every=EVERY)
    planned = planned_outer(plan, conditions(), outer, num_steps=2 * EVERY, executed=EVERY + 1)
    ends_s = run(plan, planned).ends_s
    times = outer_times(plan, conditions(), outer)
    *inner_s, outer_s, after_s = np.diff((0.0, *ends_s))
    assert len(inner_s) == EVERY - 1
    # At least: on a busy machine what is late adds to the seconds.
    assert min(*inner_s, after_s) >= 0.9 * times.inner_s
    assert outer_s >= 0.9 * (times.inner_s + times.across_s)
    assert times.across_s > times.inner_s


def test_a_delay_hides_the_messages_between_islands():
    plan = plan_of(tied=False, stages=2, replicas=2)
    seconds: dict[int, float] = {}
    for delay in (0, 2):
        outer = OuterConfig(islands=2, every=EVERY, delay=delay)
        planned = planned_outer(
            plan, conditions(), outer, num_steps=4 * EVERY, executed=EVERY + delay
        )
        seconds[delay] = run(plan, planned).ends_s[-1]
    times = outer_times(plan, conditions(), OuterConfig(islands=2, every=EVERY))
    # Two more inner steps, in less time than it takes to wait for the messages.
    assert seconds[2] < seconds[0] + 2 * times.inner_s - 0.5 * min(
        times.across_s, 2 * times.inner_s
    )


def test_eager_updates_hide_them_behind_all_inner_steps():
    plan = plan_of(tied=True, stages=2, replicas=2)
    ends_s = {}
    for eager in (False, True):
        outer = OuterConfig(islands=2, every=EVERY, eager=eager)
        planned = planned_outer(plan, conditions(), outer, num_steps=4 * EVERY, executed=2 * EVERY)
        ends_s[eager] = run(plan, planned).ends_s[-1]
    times = outer_times(plan, conditions(), OuterConfig(islands=2, every=EVERY))
    assert times.across_s < EVERY * times.inner_s
    # Two outer steps: all of the first is hidden, and so far nobody has waited for the second.
    assert ends_s[True] < ends_s[False] - times.across_s


def test_ranks_step_with_their_island_alone():
    plan = plan_of(tied=False, stages=2, replicas=2)
    outer = OuterConfig(islands=2, every=EVERY)
    outcome = run(plan, planned_outer(plan, conditions(), outer, num_steps=EVERY))
    pairs = {(sent.rank, received.rank) for sent, received in messages(outcome.trace)}
    assert pairs == {(0, 1), (1, 0), (2, 3), (3, 2)}
    assert {span.step for span in outcome.trace.spans} == {EVERY}
    assert len(outcome.bubbles) == len(outcome.ends_s) == EVERY


@pytest.mark.parametrize(
    ("tied", "num_fragments", "expected"),
    [
        (False, 1, {(0, 0, False): EMBED + 2 * LAYER, (1, 0, False): 2 * LAYER}),
        (
            True,
            3,
            {
                (0, 0, True): EMBED,
                (0, 1, False): LAYER,
                (0, 2, False): LAYER,
                (1, 0, True): EMBED,
                (1, 1, False): LAYER,
                (1, 2, False): LAYER,
            },
        ),
    ],
)
def test_what_is_exchanged_has_the_bytes_of_the_parameters(
    tied: bool, num_fragments: int, expected: dict[tuple[int, int, bool], int]
):
    plan = plan_of(tied=tied, stages=2, replicas=2)
    outer = OuterConfig(islands=2, every=num_fragments, fragments=num_fragments)
    found = planned_outer(plan, conditions(), outer, num_steps=num_fragments).bucket_bytes
    head = conditions().profile.head.num_gradients
    assert head == 0
    assert found == {OuterBucket(*bucket): 4 * size for bucket, size in expected.items()}


@pytest.mark.parametrize("num_fragments", [1, 3])
def test_a_run_ends_with_all_fragments_in_their_place(num_fragments: int):
    plan = plan_of(tied=True, stages=2, replicas=2)
    outer = OuterConfig(islands=2, every=EVERY, fragments=num_fragments)
    planned = planned_outer(plan, conditions(), outer, num_steps=2 * EVERY)
    assert len(run(plan, planned).ends_s) == 2 * EVERY
