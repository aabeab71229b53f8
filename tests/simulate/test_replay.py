"""A step played again: what was simulated comes back as it was, and parts meet closed forms."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxpipe.errors import PlanError
from jaxpipe.plan import default_plan
from jaxpipe.schedule import ScheduleKind
from jaxpipe.simulate import (
    plan_step,
    replay_step,
    simulate,
    step_breakdown,
)
from jaxpipe.topo import with_slower_links, without_network
from jaxpipe.trace import Lane, Spent, account, mean_spent_s
from tests.plan_section import decided
from tests.simulate.test_plan_step import conditions_of, plan_of, with_updates
from tests.simulate.uniform import cluster

SIZES = st.integers(1, 3)
NAMED = st.sampled_from([ScheduleKind.GPIPE, ScheduleKind.ONE_F_ONE_B, ScheduleKind.ZB_H1])


@settings(max_examples=30)
@given(NAMED, SIZES, SIZES, st.integers(1, 5))
def test_a_simulated_step_is_played_again_as_it_was(
    kind: ScheduleKind, stages: int, replicas: int, microbatches: int
):
    conditions = conditions_of(stages * replicas, layers=stages, network=True)
    conditions = with_updates(conditions, *(0.5 * stage for stage in range(stages)))
    config = decided(stages=stages, replicas=replicas, schedule=kind)
    plan = default_plan(
        config,
        conditions.cluster,
        num_layers=stages,
        batch=replicas * microbatches,
        tied=False,
    )
    first = simulate(plan_step(plan, conditions))
    again = simulate(replay_step(plan, conditions, first))
    assert len(again.spans) == len(first.spans)
    for old, new in zip(first.spans, again.spans, strict=True):
        assert (new.start_s, new.end_s) == pytest.approx((old.start_s, old.end_s))
        assert replace(new, start_s=0.0, end_s=0.0) == replace(old, start_s=0.0, end_s=0.0)


@settings(max_examples=30)
@given(SIZES, SIZES, st.integers(1, 5))
def test_over_free_links_the_account_is_compute_and_bubble_alone(
    stages: int, replicas: int, microbatches: int
):
    conditions = conditions_of(stages * replicas, layers=stages, network=True)
    conditions = replace(conditions, cluster=without_network(conditions.cluster))
    plan = plan_of(conditions, stages=stages, replicas=replicas, batch=replicas * microbatches)
    split = step_breakdown(plan, conditions)
    mean = mean_spent_s(account(split.trace)[0])
    assert mean[Spent.COMPUTE] == pytest.approx(split.compute_s)
    assert mean[Spent.WAITING] + mean[Spent.IDLE] == pytest.approx(split.bubble_s)
    assert mean[Spent.ACTIVATIONS] == mean[Spent.GRADIENTS] == pytest.approx(0.0)


def test_a_trace_of_another_plan_is_refused():
    conditions = conditions_of(2, layers=2, network=True)
    plan = plan_of(conditions, stages=2, replicas=1, batch=2)
    trace = simulate(plan_step(plan, conditions))
    kept = tuple(s for s in trace.spans if not (s.rank == 1 and s.lane is Lane.COMPUTE))
    with pytest.raises(PlanError, match=r"its rank 1 has no `forward` of stage 1"):
        replay_step(plan, conditions, replace(trace, spans=kept))


def test_slower_links_take_as_many_times_as_long():
    where = cluster(2, latency_s=0.25, bytes_per_s=8)
    slower = with_slower_links(where, scale=4.0)
    assert slower.latency_s[0, 1] == 1.0
    assert slower.bandwidth_bytes_per_s[0, 1] == slower.alone_bytes_per_s[0, 1] == 2.0
